// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/round_files.hpp"

#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace fl {

std::filesystem::path RoundFiles::path_of(const std::string& run_key, std::uint32_t round) const {
  return folder_ / fmt::format("{}{}-{:06}{}", prefix_, run_key, round, suffix_);
}

Result<std::vector<RoundFiles::Name>> RoundFiles::ours() const {
  FL_TRY(const auto names, files_.list(folder_));
  std::vector<Name> found;
  for (const std::string& name : names) {
    if (!name.starts_with(prefix_) || !name.ends_with(suffix_)) continue;
    std::string_view middle = name;
    middle.remove_prefix(prefix_.size());
    middle.remove_suffix(suffix_.size());
    const auto [key, round] = cut(middle, '-');
    const auto number = number_in<std::uint32_t>(round.value_or("")).value_or(0);
    found.push_back({name, std::string(key), number});
  }
  return found;
}

Result<std::optional<std::uint32_t>> RoundFiles::round_before(const std::string& run_key,
                                                              std::uint32_t round) const {
  FL_TRY(const auto names, ours());
  std::optional<std::uint32_t> newest;
  for (const Name& name : names) {
    if (name.run_key == run_key && name.round < round)
      newest = std::max(newest.value_or(0), name.round);
  }
  return newest;
}

Result<std::optional<std::filesystem::path>> RoundFiles::before(const std::string& run_key,
                                                                std::uint32_t round) const {
  FL_TRY(const auto newest, round_before(run_key, round));
  if (!newest) return std::optional<std::filesystem::path>();
  return std::optional(path_of(run_key, *newest));
}

Result<void> RoundFiles::remove_old(const std::string& run_key, std::uint32_t round) const {
  FL_TRY(const auto names, ours());
  FL_TRY(const auto newest, before(run_key, round));
  for (const Name& name : names) {
    const bool is_used =
        name.run_key == run_key && (name.round == round || folder_ / name.text == newest);
    if (!is_used) FL_CHECK(files_.remove(folder_ / name.text));
  }
  return {};
}

}  // namespace fl
