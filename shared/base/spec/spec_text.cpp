// SPDX-License-Identifier: Apache-2.0
#include "shared/base/spec/spec_text.hpp"

#include <algorithm>
#include <iterator>

namespace fl {

std::pair<std::string_view, std::optional<std::string_view>> cut(std::string_view text, char mark) {
  const std::size_t at = text.find(mark);
  if (at == std::string_view::npos) return {text, std::nullopt};
  return {text.substr(0, at), text.substr(at + 1)};
}

std::vector<std::string_view> parts_of(std::string_view text, char mark) {
  std::vector<std::string_view> parts;
  for (std::optional<std::string_view> rest = text; rest;) {
    const auto [part, next] = cut(*rest, mark);
    parts.push_back(part);
    rest = next;
  }
  return parts;
}

// A greedy match: if the rest does not fit, the last `*` takes one character more. Trying an
// earlier `*` again could not help.
bool fits_pattern(std::string_view pattern, std::string_view name) {
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t after_star = std::string_view::npos;
  std::size_t star_end = 0;  // The end of the characters that the last `*` stands for.
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      after_star = ++p;
      star_end = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (after_star != std::string_view::npos) {
      p = after_star;
      n = ++star_end;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
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

std::string alternatives(const std::vector<std::string_view>& texts) {
  std::vector<std::string_view> left;
  std::ranges::copy_if(texts, std::back_inserter(left), [](auto text) { return !text.empty(); });
  std::string all;
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (i > 0) all += i + 1 == left.size() ? " or " : ", ";
    all += left[i];
  }
  return all;
}

}  // namespace fl
