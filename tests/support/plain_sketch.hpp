// SPDX-License-Identifier: Apache-2.0
// Sums of count sketches by their definition (server/sums/sketch_sums.hpp): a second, simple
// and slow implementation for the tests.
#pragma once

#include "kernels/generic/sketch.hpp"
#include "shared/codec/blocks/decode.hpp"
#include "shared/codec/core/compressor.hpp"
#include "tests/support/plain_sums.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace fl::testing {

using namespace fl::codec;

/// The sum of one block's sketches.
struct PlainSketch {
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::uint64_t key = 0;
  std::uint64_t elements = 0;
  PlainSums cells;

  /// Adds a block of block format 39 (sketch_block.hpp).
  void add(Bytes block, std::uint64_t block_elements, std::uint64_t weight) {
    const auto number = [&block]<class T>(T, std::size_t at) {
      T out;
      std::memcpy(&out, block.data() + at, sizeof out);
      return std::uint64_t{out};
    };
    rows = number(std::uint8_t{}, 1);
    columns = number(std::uint16_t{}, 2);
    key = number(std::uint64_t{}, 4);
    elements = block_elements;
    std::vector<float> decoded(rows * columns);
    DecodeScratch scratch;
    decode_block(block.subspan(12), decoded, scratch).value();
    cells.add(decoded, weight);
  }

  /// The values of the sum divided by `divisor`. An element is the median of its cells if the next
  /// cell towards 0 has the same sign; otherwise it is 0.
  [[nodiscard]] std::vector<float> recovered(std::uint64_t total_weight, double divisor) const {
    const std::vector<float> means = cells.mean(total_weight, divisor);
    std::vector<float> out(elements);
    for (std::size_t i = 0; i < elements; ++i) {
      std::vector<float> read;
      for (std::size_t row = 0; row < rows; ++row) {
        const std::uint32_t word = sketch::word_at(key, row, i);
        const float cell = means[row * columns + sketch::column_of(word, columns)];
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
