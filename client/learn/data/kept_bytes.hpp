// SPDX-License-Identifier: Apache-2.0
// KeptBytes: counts what a reader keeps in memory beside the inputs: labels, targets, lengths,
// groups. A packed file of a few megabytes may hold many thousand times as many of them. One owner.
#pragma once

#include "client/learn/data/storage_writer.hpp"
#include "shared/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace fl {

class KeptBytes {
 public:
  /// The larger of --data-memory (0: its default) and its default: a small --data-memory moves
  /// inputs to the disk and must not refuse labels.
  static KeptBytes beside(std::uint64_t data_memory) {
    return KeptBytes(std::max(data_memory, data_memory_default()));
  }
  explicit KeptBytes(std::uint64_t bytes_max) : left_(bytes_max), max_(bytes_max) {}

  /// Call before the memory is taken. Errors: too_large.
  [[nodiscard]] Result<void> add(std::uint64_t bytes) {
    if (bytes > left_) {
      return Error(Errc::too_large,
                   fmt::format("labels, targets and groups take more than {} bytes of memory: give "
                               "fewer examples, or raise --data-memory",
                               max_));
    }
    left_ -= bytes;
    return {};
  }

 private:
  std::uint64_t left_;
  std::uint64_t max_;
};

}  // namespace fl
