// SPDX-License-Identifier: Apache-2.0
#include "shared/base/spec/nearest_name.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace fl {

namespace {

constexpr std::size_t typed_bytes_max = 40;  // A longer word is no mistyped name.

/// How many letters of `a` must be put in, left out or replaced to get `b`.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t before = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = before + (a[i - 1] == b[j - 1] ? 0 : 1);
      before = row[j];
      row[j] = std::min({replaced, before + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& names) {
  if (word.size() > typed_bytes_max) return "";
  const std::size_t far = word.size() < 6 ? 2 : 3;  // Most mistypings are nearer than this.
  std::string_view nearest;
  std::size_t least = far;
  for (const std::string_view name : names) {
    const std::size_t apart = distance(word, name);
    if (apart < least) nearest = name;
    least = std::min(least, apart);
  }
  return nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest);
}

}  // namespace fl
