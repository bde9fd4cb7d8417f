// SPDX-License-Identifier: Apache-2.0
// The arithmetic of a count sketch (Charikar 2002, "Finding frequent items in data streams",
// section 3). Each row has cells. It adds a value with a random sign to a random cell, and reads it
// from there. The estimate of a value is the median of what the rows read. Here the estimate is 0
// unless the neighbour of the median on the side of 0 has the median's sign. Without this rule,
// many elements that are 0 would be taken for large values with which they share half of their
// cells.
//
// Pure; any thread. The functions have internal linkage on purpose; see philox.hpp.
#pragma once

#include "kernels/generic/element_math.hpp"
#include "kernels/generic/philox.hpp"

#include <cstddef>
#include <cstdint>

namespace fl::sketch {

inline constexpr std::size_t rows_min = 3;
inline constexpr std::size_t rows_max = 15;  // The number of rows is odd.

/// Each element has a random word in each row: word `element` of the Philox stream (key, row). Its
/// upper 31 bits choose the cell's column, and its lowest bit is the sign.
FL_HOST_DEVICE static inline std::size_t column_of(std::uint32_t word, std::size_t columns) {
  return static_cast<std::size_t>((word >> 1) * std::uint64_t{columns} >> 31);
}
FL_HOST_DEVICE static inline float signed_by(std::uint32_t word, float value) {
  const auto bits = static_cast<std::uint32_t>(element::Scalar::bits(value)) ^ word << 31;
  return element::Scalar::from_bits(static_cast<std::int32_t>(bits));
}

/// The random word of one element.
FL_HOST_DEVICE static inline std::uint32_t word_at(std::uint64_t key, std::uint64_t row,
                                                   std::uint64_t element) {
  return philox::block_at(key, row, philox::counter_of(element)).word[philox::word_of(element)];
}

/// Sorts two values. If they are zeros of both signs, both become the first.
FL_HOST_DEVICE static inline void order(float& lower, float& upper) {
  const float least = upper < lower ? upper : lower;
  upper = lower < upper ? upper : lower;
  lower = least;
}

/// The median if both its neighbours have its sign, else 0. Requires: below <= median <= above.
FL_HOST_DEVICE static inline float backed(float below, float median, float above) {
  return below > 0 || above < 0 ? median : 0.0f;
}

/// The estimate from the values that the rows read. `rows` is odd and at least 3. Sorts `read` by
/// odd-even transposition.
FL_HOST_DEVICE static inline float estimate(float* read, std::size_t rows) {
  for (std::size_t pass = 0; pass < rows; ++pass) {
    for (std::size_t row = pass % 2; row + 1 < rows; row += 2) order(read[row], read[row + 1]);
  }
  const float* const middle = read + rows / 2;
  return backed(middle[-1], *middle, middle[1]);
}

/// The estimate of one element from `rows` rows of cells.
static inline float estimate_of(std::uint64_t key, std::uint64_t element, const float* cells,
                                std::size_t rows, std::size_t columns) {
  float read[rows_max];
  for (std::size_t row = 0; row < rows; ++row) {
    const std::uint32_t word = word_at(key, row, element);
    read[row] = signed_by(word, cells[row * columns + column_of(word, columns)]);
  }
  return estimate(read, rows);
}

}  // namespace fl::sketch
