// SPDX-License-Identifier: Apache-2.0
// AbortSwitch: ends the calls of a rank's groups from another thread. The agent hears of a lost
// rank long before those that wait for it: between GPUs nothing tells them until their time limit.
#pragma once

#include "shared/base/async/mutex.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <string>

namespace fl::site {

/// Any thread. What is aborted is the work that one request of the agent asks for.
class AbortSwitch {
 public:
  using End = std::function<void(const std::string& reason)>;

  /// While it lives, an abort calls `end`, on the thread of the abort; one that came before, at
  /// once. `end` must not throw, nor use the switch. The destructor waits for a call that goes on.
  class Hold {
   public:
    Hold(AbortSwitch& on, End end);
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    AbortSwitch& on_;
    std::list<End>::iterator place_;
  };

  /// The work of this request begins; what was said of the one before is forgotten. Numbers grow.
  void begin(std::uint64_t request);
  /// Ends the calls of the request that goes on. For one that has not begun it is remembered, and
  /// for one that is over nothing happens.
  void abort(std::uint64_t request, const std::string& reason);

  [[nodiscard]] bool is_on() const { return is_on_; }
  /// Why the work was aborted; none if it was not. Waits for an abort() that goes on.
  [[nodiscard]] std::optional<std::string> reason() const;

 private:
  void turn_on() FL_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::list<End> ends_ FL_GUARDED_BY(mutex_);
  std::uint64_t request_ FL_GUARDED_BY(mutex_) = 0;
  std::uint64_t aborted_ FL_GUARDED_BY(mutex_) = 0;  // The newest request that was aborted.
  std::string reason_ FL_GUARDED_BY(mutex_);
  std::atomic<bool> is_on_ = false;
};

}  // namespace fl::site
