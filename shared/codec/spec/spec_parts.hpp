// SPDX-License-Identifier: Apache-2.0
// The pieces of a codec's spec, and the functions with which the parsers of compressors and
// selectors read them. Each parser is in the file of its compressor or selector; the table in
// table.cpp names it.
//
// Errors: invalid_input. The message shows the spec on its own line, and a caret below the part
// that is wrong. Pure; any thread.
#pragma once

#include "shared/base/spec/spec_text.hpp"
#include "shared/codec/blocks/selector.hpp"
#include "shared/codec/core/compressor.hpp"
#include "shared/codec/core/warm_up.hpp"
#include "shared/codec/spec/parser.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace fl::codec {

/// A compressor or a selector in a spec: the text between two plus signs. All members are views
/// into `whole`, so that errors can point at them.
struct SpecParts {
  struct WarmUp {
    std::string_view from;  // The argument in round 1.
    std::uint32_t over;     // The number of rounds.
  };
  std::string_view whole;  // The whole spec.
  std::string_view name;
  std::optional<std::string_view> argument;  // After the colon.
  std::vector<SpecSetting> settings;         // The settings that the codec's own parser reads.
  std::optional<WarmUp> warm_up;             // From the settings `from` and `over`.
  std::uint32_t round = warmed_up;           // The round that the codec is for.
  bool error_feedback = false;               // With "+ef", "+dgc" or "delta+": later updates make
                                             // up for what this one loses.
};

using CompressorResult = Result<std::unique_ptr<const Compressor>>;
using SelectorResult = Result<std::unique_ptr<const Selector>>;

/// The most rounds of a warm-up, and the largest round for a late start ("powersgd:4@20").
inline constexpr std::int32_t rounds_max = 1'000'000;

/// Whether c is printable ASCII and not a space.
[[nodiscard]] bool is_printable(char c);
/// The error for `part`, which must be a view into `whole`. `what` says what is wrong. One line, as
/// it goes into logs: codec "qsgd:4,bucket=0", at "0": the bucket must be …
[[nodiscard]] Error wrong(std::string_view whole, std::string_view part, std::string_view what);

/// The whole number `text`, from `least` to `most`. An error calls it `what`.
[[nodiscard]] Result<std::int32_t> parse_number(std::string_view whole, std::string_view text,
                                                std::string_view what, std::int32_t least,
                                                std::int32_t most);

/// The number `text`, if is_allowed(number) is true. `what` is the error's text and says which
/// numbers are allowed.
template <class Number, class IsAllowed>
Result<Number> parse_real(std::string_view whole, std::string_view text, std::string_view what,
                          const IsAllowed& is_allowed) {
  const auto number = number_in<Number>(text);
  if (number && is_allowed(*number)) return *number;
  return wrong(whole, text, what);
}

/// The argument of the codec in round parts.round, which a warm-up may change. parse_one(text)
/// reads one number. Requires: there is an argument.
template <class ParseOne>
auto parse_argument(const SpecParts& parts, const ParseOne& parse_one) -> decltype(parse_one("")) {
  FL_TRY(const auto last, parse_one(*parts.argument));
  if (!parts.warm_up) return last;
  FL_TRY(const auto first, parse_one(parts.warm_up->from));
  return warm_up(first, last, parts.round, parts.warm_up->over);
}

/// parse_argument() for whole numbers from `least` to `most`.
[[nodiscard]] Result<std::int32_t> parse_whole_argument(const SpecParts& parts,
                                                        std::string_view what, std::int32_t least,
                                                        std::int32_t most);
/// The argument of a selector: the fraction of the elements that it sends, above 0 and at most 1.
[[nodiscard]] Result<double> parse_fraction(const SpecParts& parts);

/// An error with the text `what`, unless there is an argument.
[[nodiscard]] Result<void> check_has_argument(const SpecParts& parts, std::string_view what);
/// An error if there are settings.
[[nodiscard]] Result<void> check_no_settings(const SpecParts& parts);
/// An error if there is an argument, or settings.
[[nodiscard]] Result<void> check_plain(const SpecParts& parts);

}  // namespace fl::codec
