// SPDX-License-Identifier: Apache-2.0
#include "shared/base/spec/spec_text.hpp"

#include <algorithm>

namespace fl {

std::pair<std::string_view, std::optional<std::string_view>> cut(std::string_view text, char mark) {
  const std::size_t at = text.find(mark);
  if (at == std::string_view::npos) return {text, std::nullopt};
  return {text.substr(0, at), text.substr(at + 1)};
}

std::optional<SpecFault> split_settings(std::string_view text, std::vector<SpecSetting>& settings) {
  for (std::optional<std::string_view> rest = text; rest;) {
    const auto [setting, next] = cut(*rest, ',');
    const auto [key, value] = cut(setting, '=');
    if (!value || key.empty()) return SpecFault{SpecFault::Kind::not_a_setting, setting};
    if (std::ranges::find(settings, key, &SpecSetting::first) != settings.end())
      return SpecFault{SpecFault::Kind::given_twice, key};
    settings.emplace_back(key, *value);
    rest = next;
  }
  return std::nullopt;
}

}  // namespace fl
