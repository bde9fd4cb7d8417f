// SPDX-License-Identifier: Apache-2.0
// The rounds that an engine has just recorded, for those who tell others of them: a bounded queue
// from the engine to the exporter of traces. It has what the history does not: how long the new
// version and its row took. Any thread. Nothing here waits for whoever takes them.
#pragma once

#include "server/history/records.hpp"
#include "shared/base/async/mutex.hpp"
#include "shared/base/limits.hpp"

#include <cstdint>
#include <deque>
#include <optional>

namespace fl::server {

struct RecordedRound {
  RunId run = 0;
  Round round = 0;
  double apply_seconds = 0;  // To make the new version, until RoundCommit::ended_at.
  double store_seconds = 0;  // From there until the round was durable.
};

class RecordedRounds {
 public:
  /// Drops the oldest when limits::trace_rounds_max wait.
  void add(const RecordedRound& round) {
    const MutexLock lock(mutex_);
    if (waiting_.size() == limits::trace_rounds_max) {
      waiting_.pop_front();
      ++dropped_;
    }
    waiting_.push_back(round);
  }
  /// The oldest; none if none waits.
  [[nodiscard]] std::optional<RecordedRound> take() {
    const MutexLock lock(mutex_);
    if (waiting_.empty()) return std::nullopt;
    const RecordedRound round = waiting_.front();
    waiting_.pop_front();
    return round;
  }
  [[nodiscard]] std::size_t waiting() const {
    const MutexLock lock(mutex_);
    return waiting_.size();
  }
  [[nodiscard]] std::uint64_t dropped() const {
    const MutexLock lock(mutex_);
    return dropped_;
  }

 private:
  mutable Mutex mutex_;
  std::deque<RecordedRound> waiting_ FL_GUARDED_BY(mutex_);
  std::uint64_t dropped_ FL_GUARDED_BY(mutex_) = 0;
};

}  // namespace fl::server
