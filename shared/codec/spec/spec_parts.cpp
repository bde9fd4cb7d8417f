// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/spec/spec_parts.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl::codec {

namespace {

constexpr std::size_t shown_bytes_max = 256;

/// A text, or the beginning of a long one, with a "?" for each character that can't be printed.
std::string beginning_of(std::string_view text) {
  std::string some(text.substr(0, shown_bytes_max));
  std::ranges::replace_if(
      some, [](char c) { return c != ' ' && !is_printable(c); }, '?');
  return text.size() > shown_bytes_max ? some + "..." : some;
}

}  // namespace

bool is_printable(char c) { return c > ' ' && c <= '~'; }

Error wrong(std::string_view whole, std::string_view part, std::string_view what) {
  const auto column = static_cast<std::size_t>(part.data() - whole.data());
  const std::string rest = beginning_of(whole.substr(std::min(column, whole.size())));
  const std::string place = rest.empty() ? ", at its end"
                            : column > 0 ? fmt::format(", at \"{}\"", rest)
                                         : "";
  return {Errc::invalid_input, fmt::format("codec \"{}\"{}: {}", beginning_of(whole), place, what)};
}

Result<std::int32_t> parse_number(std::string_view whole, std::string_view text,
                                  std::string_view what, std::int32_t least, std::int32_t most) {
  const auto number = number_in<std::int32_t>(text);
  if (number && *number >= least && *number <= most) return *number;
  return wrong(whole, text,
               fmt::format("{} must be a whole number from {} to {}", what, least, most));
}

Result<std::int32_t> parse_whole_argument(const SpecParts& parts, std::string_view what,
                                          std::int32_t least, std::int32_t most) {
  return parse_argument(parts, [&](std::string_view text) {
    return parse_number(parts.whole, text, what, least, most);
  });
}

Result<double> parse_fraction(const SpecParts& parts) {
  FL_CHECK(check_has_argument(
      parts, fmt::format("{0} needs the fraction to send here, such as {0}:0.01", parts.name)));
  const auto what = fmt::format("the fraction of {} must be above 0 and at most 1", parts.name);
  return parse_argument(parts, [&](std::string_view text) {
    return parse_real<double>(parts.whole, text, what, [](double f) { return f > 0 && f <= 1; });
  });
}

Result<void> check_has_argument(const SpecParts& parts, std::string_view what) {
  if (parts.argument) return {};
  return wrong(parts.whole, parts.name.substr(parts.name.size()), what);
}

Result<void> check_no_settings(const SpecParts& parts) {
  if (parts.settings.empty()) return {};
  return wrong(parts.whole, parts.settings.front().first,
               fmt::format("{} has no settings of its own", parts.name));
}

Result<void> check_plain(const SpecParts& parts) {
  if (parts.argument) {
    return wrong(parts.whole, *parts.argument, fmt::format("{} takes no argument", parts.name));
  }
  return check_no_settings(parts);
}

}  // namespace fl::codec
