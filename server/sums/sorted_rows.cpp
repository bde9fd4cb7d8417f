// SPDX-License-Identifier: Apache-2.0
#include "server/sums/sorted_rows.hpp"

#include <algorithm>
#include <bit>
#include <vector>

namespace fl::server {

namespace {

/// Puts the smaller value of each column into `low`.
void order(float* low, float* high, std::size_t begin, std::size_t end) {
  for (std::size_t c = begin; c < end; ++c) {
    const float a = low[c];
    const float b = high[c];
    low[c] = b < a ? b : a;
    high[c] = b < a ? a : b;
  }
}

}  // namespace

/// Batcher's merge exchange (Knuth, volume 3, section 5.2.2, algorithm M): which rows are compared
/// does not depend on the values, so all columns go through it together.
void sort_columns(const Columns& at) {
  if (at.rows < 2) return;
  const std::size_t top = std::bit_ceil(at.rows) / 2;
  for (std::size_t p = top; p > 0; p /= 2) {
    std::size_t q = top;
    std::size_t r = 0;
    for (std::size_t d = p; d > 0; d = q - p, q /= 2, r = p) {
      for (std::size_t i = 0; i + d < at.rows; ++i) {
        if ((i & p) == r) order(at.row(i), at.row(i + d), at.begin, at.end);
      }
      if (q == p) break;
    }
  }
}

void middle_means(const Columns& at, std::size_t drop, std::span<float> out) {
  std::vector<double> sums(at.end - at.begin);
  for (std::size_t row = drop; row < at.rows - drop; ++row) {
    const float* const values = at.row(row) + at.begin;
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<double>(values[i]);
  }
  const auto count = static_cast<double>(at.rows - 2 * drop);
  for (std::size_t i = 0; i < sums.size(); ++i)
    out[at.begin + i] = static_cast<float>(sums[i] / count);
}

}  // namespace fl::server
