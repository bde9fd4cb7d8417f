// The arithmetic of a count sketch (Charikar 2002, "Finding frequent items in data streams",
// section 3): a row of it adds each value, with a random sign, into one of its cells at random, and
// reads it from there; a value is the median of what the rows read. Here it is 0 unless the next
// reading towards 0 has the median's sign: so of the many elements that are 0 far fewer are taken
// for one of the large values with which they share half of their cells.
//
// Internal linkage on purpose; see philox.hpp.
#pragma once

#include "kernels/generic/element_math.hpp"
#include "kernels/generic/philox.hpp"

#include <cstddef>
#include <cstdint>

namespace fl::sketch {

inline constexpr std::size_t rows_min = 3;
inline constexpr std::size_t rows_max = 15;  // Odd numbers.

/// Both of them from the random word that an element has in a row: word `element` of the Philox
/// stream (key, row). The cell is told by its upper 31 bits, the sign is the lowest.
FL_HOST_DEVICE static inline std::size_t column_of(std::uint32_t word, std::size_t columns) {
  return static_cast<std::size_t>((word >> 1) * std::uint64_t{columns} >> 31);
}
FL_HOST_DEVICE static inline float signed_by(std::uint32_t word, float value) {
  const auto bits = static_cast<std::uint32_t>(element::Scalar::bits(value)) ^ word << 31;
  return element::Scalar::from_bits(static_cast<std::int32_t>(bits));
}

/// Of one element alone.
FL_HOST_DEVICE static inline std::uint32_t word_at(std::uint64_t key, std::uint64_t row,
                                                   std::uint64_t element) {
  return philox::block_at(key, row, philox::counter_of(element)).word[philox::word_of(element)];
}

/// The lesser first; two zeros stay as they are.
FL_HOST_DEVICE static inline void order(float& lower, float& upper) {
  const float least = upper < lower ? upper : lower;
  upper = lower < upper ? upper : lower;
  lower = least;
}

/// The median, if one of its neighbours has its sign, which of these is above 0 or below; else 0.
FL_HOST_DEVICE static inline float backed(float below, float median, float above) {
  return below > 0 || above < 0 ? median : 0.0f;
}

/// From what the rows read, an odd number from 3 on, which it sorts by odd-even transposition.
FL_HOST_DEVICE static inline float estimate(float* read, std::size_t rows) {
  for (std::size_t pass = 0; pass < rows; ++pass) {
    for (std::size_t row = pass % 2; row + 1 < rows; row += 2) order(read[row], read[row + 1]);
  }
  const float* const middle = read + rows / 2;
  return backed(middle[-1], *middle, middle[1]);
}

/// Of one element alone, from `rows` rows of cells.
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
