// SPDX-License-Identifier: Apache-2.0
// Texts of any lengths.
#pragma once

#include "client/learn/data/dataset.hpp"
#include "client/learn/data/random.hpp"

#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace fl::test {

/// The lengths of 16 texts. A batch of 8 has parts with very unlike numbers of bytes.
inline std::vector<std::uint16_t> ragged_lengths() {
  return {33, 5, 33, 4, 33, 9, 3, 33, 33, 7, 33, 33, 3, 12, 2, 33};
}

/// A piece of each length, of a few letters.
inline DataSet made_up_texts(const std::vector<std::uint16_t>& lengths,
                             std::uint32_t context_max = piece_tokens_default) {
  Random random(7, 0);
  std::vector<std::uint8_t> bytes;
  std::vector<TextPiece> pieces;
  for (const std::uint16_t length : lengths) {
    pieces.push_back({bytes.size(), length});
    for (std::size_t i = 0; i < length; ++i)
      bytes.push_back(static_cast<std::uint8_t>('a' + random.below(17)));
  }
  return {.kind = DataSet::Kind::text,
          .shape = {context_max + 1},
          .inputs = Storage(std::move(bytes)),
          .pieces = std::move(pieces),
          .source = "texts"};
}

/// |a - b| / |b|.
inline double relative_distance(std::span<const float> a, std::span<const float> b) {
  double apart = 0;
  double all = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - b[i];
    apart += difference * difference;
    all += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(apart / all);
}

}  // namespace fl::test
