// SPDX-License-Identifier: Apache-2.0
// "did you mean": the known name that a mistyped word is nearest to. For flags, commands, and the
// names that values are made of (models, codecs, strategies and others). Pure functions; any
// thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

/// "; did you mean NAME?", to append to an error, if the word is nearly one of the names; else "".
[[nodiscard]] std::string did_you_mean(std::string_view word,
                                       const std::vector<std::string_view>& names);

/// did_you_mean() for the rows of a table; `name_of` takes the name from a row.
template <class Rows, class NameOf>
[[nodiscard]] std::string did_you_mean(std::string_view word, const Rows& rows, NameOf name_of) {
  std::vector<std::string_view> names;
  for (const auto& row : rows) names.push_back(std::invoke(name_of, row));
  return did_you_mean(word, names);
}

}  // namespace fl
