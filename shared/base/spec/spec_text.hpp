// SPDX-License-Identifier: Apache-2.0
// The pieces that all specs are made of ("topk:0.01,scope=global", "fedadam:lr=0.1,beta1=0.9"):
// texts cut at a mark, settings KEY=VALUE behind commas, numbers, and lists of what may be there.
// Whoever reads a spec says in its own words what is wrong with it.
#pragma once

#include <charconv>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fl {

/// The text before the first `mark`, and the text after it, if the mark is there.
[[nodiscard]] std::pair<std::string_view, std::optional<std::string_view>> cut(
    std::string_view text, char mark);

/// The texts between the marks: one more than there are marks.
[[nodiscard]] std::vector<std::string_view> parts_of(std::string_view text, char mark);

/// All of `text` as a number; none if it is not one, or out of Number's range.
template <class Number>
[[nodiscard]] std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failed != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// Whether the whole name fits the pattern: "*" stands for any characters, also none, "?" for one,
/// and every other character for itself.
[[nodiscard]] bool fits_pattern(std::string_view pattern, std::string_view name);

/// A key and its value, both views into the text that was split.
using SpecSetting = std::pair<std::string_view, std::string_view>;

/// A mistake in settings, and the wrong part of the text.
struct SpecFault {
  enum class Kind {
    not_a_setting,  // The part has no "=", or nothing before it.
    given_twice,    // `part` is the key.
  };
  Kind kind;
  std::string_view part;
};

/// Appends the settings of "KEY=VALUE,KEY=VALUE" to `settings`, in their order. Returns the first
/// fault, if there is one.
[[nodiscard]] std::optional<SpecFault> split_settings(std::string_view text,
                                                      std::vector<SpecSetting>& settings);

/// "a, b or c"; texts that are empty are left out.
[[nodiscard]] std::string alternatives(const std::vector<std::string_view>& texts);

/// Lists the rows of a table, each by the text that `text_of` takes from it: a member, or a
/// function, which returns "" for a row that is left out.
template <class Rows, class TextOf>
[[nodiscard]] std::string alternatives(const Rows& rows, TextOf text_of) {
  std::vector<std::string_view> texts;
  for (const auto& row : rows) texts.push_back(std::invoke(text_of, row));
  return alternatives(texts);
}

}  // namespace fl
