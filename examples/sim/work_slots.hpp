// SPDX-License-Identifier: Apache-2.0
// WorkSlots limits how many virtual clients work at the same time, so that memory does not grow
// with the number of clients. First come, first served. Any thread.
#pragma once

#include "shared/base/async/mutex.hpp"

#include <deque>
#include <functional>
#include <utility>

namespace fl::sim {

class WorkSlots {
 public:
  explicit WorkSlots(std::size_t slots) : free_(slots) {}

  /// Takes a slot. Returns true if the caller has it now. Otherwise returns false and calls `begin`
  /// when the caller has the slot, from the thread that gave one back.
  [[nodiscard]] bool take(std::function<void()> begin) {
    const MutexLock lock(mutex_);
    if (free_ == 0) {
      waiting_.push_back(std::move(begin));
      return false;
    }
    --free_;
    return true;
  }

  /// Gives a slot back, to the one who has waited longest.
  void give_back() {
    std::function<void()> begin;
    {
      const MutexLock lock(mutex_);
      if (waiting_.empty()) {
        ++free_;
        return;
      }
      begin = std::move(waiting_.front());
      waiting_.pop_front();
    }
    begin();
  }

 private:
  Mutex mutex_;
  std::size_t free_ FL_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> waiting_ FL_GUARDED_BY(mutex_);
};

}  // namespace fl::sim
