// SPDX-License-Identifier: Apache-2.0
// What the transfers under way may hold of limits::bulk_bytes_max, in sessions' buffers both ways:
// the more there are, the smaller are the chunks of the next one. A server has one budget, which
// all its runs share. On the engines' strand.
#pragma once

#include "shared/base/limits.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace fl::server {

class BulkBudget {
 public:
  /// A transfer begins, or has ended, with chunks of at most `chunk_bytes_max` bytes.
  void begin(std::size_t chunk_bytes_max) {
    ++transfers_;
    bytes_ += limits::chunks_of_transfer * chunk_bytes_max;
  }
  void end(std::size_t chunk_bytes_max) {
    --transfers_;
    bytes_ -= limits::chunks_of_transfer * chunk_bytes_max;
  }

  /// The size for the chunks of a new transfer of `bytes` bytes. Three quarters of the budget are
  /// for large chunks, and one transfer gets at most an eighth of what is left of them.
  [[nodiscard]] std::size_t chunk_bytes_max(std::uint64_t bytes) const {
    constexpr std::size_t for_large = limits::bulk_bytes_max / 4 * 3;
    const std::size_t left = for_large - std::min(bytes_, for_large);
    const std::size_t chunk = std::clamp(std::bit_floor(left / 8 / limits::chunks_of_transfer),
                                         limits::chunk_bytes_min, limits::chunk_bytes_max);
    return static_cast<std::size_t>(std::clamp<std::uint64_t>(bytes, 1, chunk));
  }
  /// Whether there is room for another transfer. A download takes the least size even if not.
  [[nodiscard]] bool has_room() const {
    return bytes_ + limits::chunks_of_transfer * limits::chunk_bytes_min <= limits::bulk_bytes_max;
  }

  [[nodiscard]] int transfers() const { return transfers_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  int transfers_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace fl::server
