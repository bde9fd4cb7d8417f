// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/kept_moments.hpp"

#include "shared/params/safetensors.hpp"

namespace fl {

namespace {

// A count of steps is two values that an fp32 holds exactly.
constexpr std::uint64_t steps_unit = 1 << 24;

Layout layout_of(const Moments& moments) {
  std::vector<TensorSpec> specs;
  if (!moments.first.empty())
    specs.push_back({"first", {static_cast<std::int64_t>(moments.first.size())}});
  if (!moments.second.empty())
    specs.push_back({"second", {static_cast<std::int64_t>(moments.second.size())}});
  specs.push_back({"steps", {2}});
  return Layout::make(specs).value();
}

}  // namespace

Result<Moments> KeptMoments::before(const std::string& run_key, std::uint32_t round) {
  FL_TRY(const auto path, rounds_.before(run_key, round));
  Moments moments;
  if (!path) return moments;
  const auto read = [&]() -> Result<void> {
    FL_TRY(const auto file, files_.open(*path, OpenMode::read));
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
  if (auto done = read(); !done) return done.error().at(path->string());
  return moments;
}

Result<void> KeptMoments::keep(const std::string& run_key, std::uint32_t round,
                               const Moments& moments) {
  std::vector<float> values = moments.first;
  values.insert(values.end(), moments.second.begin(), moments.second.end());
  values.push_back(static_cast<float>(moments.steps / steps_unit));
  values.push_back(static_cast<float>(moments.steps % steps_unit));
  FL_CHECK(
      replace_safetensors(files_, rounds_.path_of(run_key, round), layout_of(moments), values));
  return rounds_.remove_old(run_key, round);
}

}  // namespace fl
