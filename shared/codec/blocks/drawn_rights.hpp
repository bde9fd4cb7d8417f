// SPDX-License-Identifier: Apache-2.0
// DrawnRights: the right factors of gradzip that readers need at the moment. Such a factor follows
// from a key of 8 bytes (drawn_right()), and may be almost as large as its tensor. So readers that
// need the same one share it: the threads that decode one payload, and the updates of a round.
#pragma once

#include "shared/base/async/mutex.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

namespace fl::codec {

/// Any thread.
class DrawnRights {
 public:
  /// [rank, columns].
  using Values = std::shared_ptr<const std::vector<float>>;

  /// Returns drawn_right(key, rank, cols). It is drawn only if nobody has it. Memory: the factors
  /// that callers still hold, and the one that was asked for last; while one is drawn, three times
  /// its bytes.
  [[nodiscard]] Values get(std::uint64_t key, std::uint32_t rank, std::uint64_t cols);
  /// How many factors were drawn so far.
  [[nodiscard]] std::size_t draws() const;

 private:
  struct Drawn {
    std::once_flag once;  // Others wait while the first one draws.
    std::vector<float> values;
  };
  using Key = std::tuple<std::uint64_t, std::uint32_t, std::uint64_t>;  // The arguments of get().

  mutable Mutex mutex_;
  std::map<Key, std::weak_ptr<Drawn>> known_ FL_GUARDED_BY(mutex_);
  std::shared_ptr<Drawn> last_ FL_GUARDED_BY(mutex_);
  std::size_t draws_ FL_GUARDED_BY(mutex_) = 0;
};

}  // namespace fl::codec
