// The arithmetic of a count sketch (Charikar 2002, "Finding frequent items in data streams",
// section 3): a row of it adds each value, with a random sign, into one of its cells at random, and
// reads it from there; a value is the median of what the rows read.
//
// Internal linkage on purpose; see philox.hpp.
#pragma once

#include "kernels/element.hpp"
#include "kernels/philox.hpp"

#include <cstddef>
#include <cstdint>

namespace fl::sketch {

inline constexpr std::size_t rows_max = 15;  // An odd number.

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

/// The median of what the rows read, an odd number, which it sorts by odd-even transposition.
FL_HOST_DEVICE static inline float median(float* read, std::size_t rows) {
  for (std::size_t pass = 0; pass < rows; ++pass) {
    for (std::size_t row = pass % 2; row + 1 < rows; row += 2) order(read[row], read[row + 1]);
  }
  return read[rows / 2];
}

/// Of one element alone, from `rows` rows of cells.
static inline float estimate_of(std::uint64_t key, std::uint64_t element, const float* cells,
                                std::size_t rows, std::size_t columns) {
  float read[rows_max];
  for (std::size_t row = 0; row < rows; ++row) {
    const std::uint32_t word = word_at(key, row, element);
    read[row] = signed_by(word, cells[row * columns + column_of(word, columns)]);
  }
  return median(read, rows);
}

}  // namespace fl::sketch
