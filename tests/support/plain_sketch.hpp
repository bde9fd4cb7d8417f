// SPDX-License-Identifier: Apache-2.0
// Sums of count sketches by their definition (shared/codec/sums/sketch_sums.hpp): a second, simple
// and slow implementation for the tests.
#pragma once

#include "kernels/generic/sketch.hpp"
#include "shared/codec/blocks/decode.hpp"
#include "shared/codec/core/compressor.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace fl::testing {

/// The sum of one block's sketches. `sums` has the sums of weight times cell, as multiples of
/// 2^-fraction_bits.
struct PlainSketch {
  __extension__ typedef __int128 Wide;

  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::uint64_t key = 0;
  std::uint64_t elements = 0;
  std::vector<Wide> sums;

  /// Adds a block of block format 39 (sketch_block.hpp).
  void add(Bytes block, std::uint64_t block_elements, int fraction_bits, std::uint64_t weight) {
    const auto number = [&block]<class T>(T, std::size_t at) {
      T out;
      std::memcpy(&out, block.data() + at, sizeof out);
      return std::uint64_t{out};
    };
    rows = number(std::uint8_t{}, 1);
    columns = number(std::uint16_t{}, 2);
    key = number(std::uint64_t{}, 4);
    elements = block_elements;
    sums.resize(rows * columns);
    std::vector<float> cells(sums.size());
    DecodeScratch scratch;
    decode_block(block.subspan(12), cells, scratch).value();
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const double scaled = std::ldexp(static_cast<double>(cells[i]), fraction_bits);
      sums[i] += static_cast<Wide>(std::nearbyint(scaled)) * weight;
    }
  }

  /// The values of the sum divided by `divisor`. An element is the median of its cells if the next
  /// cell towards 0 has the same sign; otherwise it is 0.
  [[nodiscard]] std::vector<float> recovered(int fraction_bits, double divisor) const {
    const double factor = std::ldexp(1.0 / divisor, -fraction_bits);
    std::vector<float> out(elements);
    for (std::size_t i = 0; i < elements; ++i) {
      std::vector<float> read;
      for (std::size_t row = 0; row < rows; ++row) {
        const std::uint32_t word = sketch::word_at(key, row, i);
        const Wide sum = sums[row * columns + sketch::column_of(word, columns)];
        const auto cell = static_cast<float>(static_cast<double>(sum) * factor);
        read.push_back((word & 1) != 0 ? -cell : cell);
      }
      std::sort(read.begin(), read.end());
      const float median = read[rows / 2];
      const float next = median > 0 ? read[rows / 2 - 1] : read[rows / 2 + 1];
      if ((median > 0 && next > 0) || (median < 0 && next < 0)) out[i] = median;
    }
    return out;
  }
};

}  // namespace fl::testing
