// SPDX-License-Identifier: Apache-2.0
#include "server/sums/rules/rule_arguments.hpp"

#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

namespace fl::server {

Error RuleArguments::wrong(std::string_view why) const {
  return {Errc::invalid_input, fmt::format("'{}': {}", spec_, why)};
}

Result<void> RuleArguments::none() const {
  if (!text_) return {};
  return wrong("this rule takes no number");
}

Result<double> RuleArguments::number(std::string_view what, double most) const {
  const auto value = number_in<double>(text_.value_or(""));
  if (value && *value > 0 && *value <= most) return *value;
  return wrong(fmt::format("{} must be a number above 0 and at most {:g}", what, most));
}

Result<std::uint32_t> RuleArguments::count(std::string_view what) const {
  return count(text_.value_or(""), what, 0);
}

Result<std::uint32_t> RuleArguments::count(std::string_view text, std::string_view what,
                                           std::uint32_t least) const {
  const auto value = number_in<std::uint32_t>(text);
  if (value && *value >= least && *value <= rule_updates_max) return *value;
  return wrong(
      fmt::format("{} must be a whole number from {} to {:g}", what, least, rule_updates_max));
}

std::pair<std::string_view, std::optional<std::string_view>> RuleArguments::two() const {
  return cut(text_.value_or(""), ',');
}

}  // namespace fl::server
