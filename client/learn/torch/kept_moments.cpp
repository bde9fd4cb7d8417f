// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/kept_moments.hpp"

#include "shared/base/spec/spec_text.hpp"
#include "shared/params/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

namespace fl {

namespace {

constexpr std::string_view prefix = "optimizer-";
constexpr std::string_view suffix = ".safetensors";
// A count of steps is two values that an fp32 holds exactly.
constexpr std::uint64_t steps_unit = 1 << 24;

std::string name_of(const std::string& run_key, std::uint32_t round) {
  return fmt::format("{}{}-{:06}{}", prefix, run_key, round, suffix);
}

/// The round in the name of one of our files, and its run's key.
std::pair<std::string_view, std::uint32_t> parts_of(std::string_view name) {
  name.remove_prefix(prefix.size());
  name.remove_suffix(suffix.size());
  const auto [key, round] = cut(name, '-');
  return {key, number_in<std::uint32_t>(round.value_or("")).value_or(0)};
}

Layout layout_of(const Moments& moments) {
  std::vector<TensorSpec> specs;
  if (!moments.first.empty())
    specs.push_back({"first", {static_cast<std::int64_t>(moments.first.size())}});
  if (!moments.second.empty())
    specs.push_back({"second", {static_cast<std::int64_t>(moments.second.size())}});
  specs.push_back({"steps", {2}});
  return Layout::make(specs).value();
}

/// Our files in the folder, in the order of their names: by run, then by round.
Result<std::vector<std::string>> ours(Files& files, const std::filesystem::path& folder) {
  FL_TRY(auto names, files.list(folder));
  std::erase_if(names, [](const std::string& name) {
    return !name.starts_with(prefix) || !name.ends_with(suffix);
  });
  return names;
}

/// The newest round before `round` that has a file of this run.
std::optional<std::uint32_t> newest_before(const std::vector<std::string>& names,
                                           const std::string& run_key, std::uint32_t round) {
  std::optional<std::uint32_t> newest;
  for (const std::string& name : names) {
    const auto [key, its_round] = parts_of(name);
    if (key == run_key && its_round < round) newest = std::max(newest.value_or(0), its_round);
  }
  return newest;
}

}  // namespace

Result<Moments> KeptMoments::before(const std::string& run_key, std::uint32_t round) {
  FL_TRY(const auto names, ours(files_, folder_));
  const auto newest = newest_before(names, run_key, round);
  Moments moments;
  if (!newest) return moments;
  const auto path = folder_ / name_of(run_key, *newest);
  const auto read = [&]() -> Result<void> {
    FL_TRY(const auto file, files_.open(path, OpenMode::read));
    FL_TRY(const SafetensorsInfo info, read_safetensors_header(*file));
    std::vector<float> values(info.layout.elements());
    FL_CHECK(read_safetensors(*file, info.layout, values));
    for (const Layout::Tensor& tensor : info.layout.tensors()) {
      const auto part = std::span(values).subspan(tensor.offset, tensor.elements);
      if (tensor.name == "first") moments.first.assign(part.begin(), part.end());
      if (tensor.name == "second") moments.second.assign(part.begin(), part.end());
      if (tensor.name == "steps" && tensor.elements == 2) {
        moments.steps =
            static_cast<std::uint64_t>(part[0]) * steps_unit + static_cast<std::uint64_t>(part[1]);
      }
    }
    return {};
  };
  if (auto done = read(); !done) return done.error().at(path.string());
  return moments;
}

Result<void> KeptMoments::keep(const std::string& run_key, std::uint32_t round,
                               const Moments& moments) {
  std::vector<float> values = moments.first;
  values.insert(values.end(), moments.second.begin(), moments.second.end());
  values.push_back(static_cast<float>(moments.steps / steps_unit));
  values.push_back(static_cast<float>(moments.steps % steps_unit));
  const std::string name = name_of(run_key, round);
  FL_CHECK(replace_safetensors(files_, folder_ / name, layout_of(moments), values));
  FL_TRY(const auto names, ours(files_, folder_));
  const auto before = newest_before(names, run_key, round);
  for (const std::string& other : names) {
    const auto [key, its_round] = parts_of(other);
    const bool is_used = key == run_key && (its_round == round || its_round == before);
    if (!is_used) FL_CHECK(files_.remove(folder_ / other));
  }
  return {};
}

}  // namespace fl
