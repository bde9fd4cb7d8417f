// A codec's spec taken apart, and what the parsers of single methods and selectors read it with. A
// method's parser stands in its own file; the table in table.cpp names it.
//
// Errors are invalid_input: the spec on a line of its own, and under it a caret at the wrong part.
#pragma once

#include "shared/base/spec/spec_text.hpp"
#include "shared/codec/blocks/selector.hpp"
#include "shared/codec/core/compressor.hpp"
#include "shared/codec/core/warm_up.hpp"
#include "shared/codec/encode/codec.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace fl {

/// One part of a codec, between its plus signs. All are views into `whole`, so that errors can
/// point at them.
struct SpecParts {
  struct WarmUp {
    std::string_view from;
    std::uint32_t over;
  };
  std::string_view whole;
  std::string_view name;
  std::optional<std::string_view> argument;  // Behind the colon.
  std::vector<SpecSetting> settings;
  std::optional<WarmUp> warm_up;  // No setting any more.
  std::uint32_t round = warmed_up;
  bool error_feedback = false;  // Or a delta: what the whole codec loses comes again later.
};

using CompressorResult = Result<std::unique_ptr<const Compressor>>;
using SelectorResult = Result<std::unique_ptr<const Selector>>;

inline constexpr std::int32_t rounds_max = 1'000'000;  // Of a warm-up, and before a late start.

[[nodiscard]] bool is_printable(char c);
[[nodiscard]] Error wrong(std::string_view whole, std::string_view part, std::string_view what);

[[nodiscard]] Result<std::int32_t> parse_number(std::string_view whole, std::string_view text,
                                                std::string_view what, std::int32_t least,
                                                std::int32_t most);

/// `what` says which numbers are allowed; is_allowed is asked about those that can be read.
template <class Number, class IsAllowed>
Result<Number> parse_real(std::string_view whole, std::string_view text, std::string_view what,
                          const IsAllowed& is_allowed) {
  const auto number = number_in<Number>(text);
  if (number && is_allowed(*number)) return *number;
  return wrong(whole, text, what);
}

/// The argument in parts.round; parse_one(text) reads it and the number that it comes from.
template <class ParseOne>
auto parse_argument(const SpecParts& parts, const ParseOne& parse_one) -> decltype(parse_one("")) {
  FL_TRY(const auto last, parse_one(*parts.argument));
  if (!parts.warm_up) return last;
  FL_TRY(const auto first, parse_one(parts.warm_up->from));
  return warm_up(first, last, parts.round, parts.warm_up->over);
}

[[nodiscard]] Result<std::int32_t> parse_whole_argument(const SpecParts& parts,
                                                        std::string_view what, std::int32_t least,
                                                        std::int32_t most);
/// Of a selector: the part of all elements that it sends.
[[nodiscard]] Result<double> parse_fraction(const SpecParts& parts);

[[nodiscard]] Result<void> check_has_argument(const SpecParts& parts, std::string_view what);
[[nodiscard]] Result<void> check_no_settings(const SpecParts& parts);
/// Neither argument nor settings.
[[nodiscard]] Result<void> check_plain(const SpecParts& parts);

}  // namespace fl
