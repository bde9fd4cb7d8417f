// How many virtual clients may be at work at once, so that memory does not grow with their number.
// First come, first served. Any thread.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <utility>

namespace fl {

class WorkSlots {
 public:
  explicit WorkSlots(std::size_t turns) : free_(turns) {}

  /// True: the turn is the caller's at once. False: it is when `begin` is called, from a thread
  /// that gives one back.
  [[nodiscard]] bool take(std::function<void()> begin) {
    const std::lock_guard lock(mutex_);
    if (free_ == 0) {
      waiting_.push_back(std::move(begin));
      return false;
    }
    --free_;
    return true;
  }

  void give_back() {
    std::function<void()> begin;
    {
      const std::lock_guard lock(mutex_);
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
  std::mutex mutex_;  // Guards what follows.
  std::size_t free_;
  std::deque<std::function<void()>> waiting_;
};

}  // namespace fl
