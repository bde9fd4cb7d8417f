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
#include <stop_token>
#include <string>
#include <thread>

namespace fl::site {

/// Any thread. What is aborted is the work that one request of the agent asks for.
class AbortSwitch {
 public:
  AbortSwitch();
  /// Waits for the ends that are being called.
  ~AbortSwitch();
  AbortSwitch(const AbortSwitch&) = delete;
  AbortSwitch& operator=(const AbortSwitch&) = delete;

  /// Ends the calls of a group. It may take long, and must not throw.
  using End = std::function<void()>;
  /// While it lives, an abort calls `end`, on a thread of the switch; if the abort came before, the
  /// constructor calls it. Both constructor and destructor wait for ends that are being called.
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
  /// Ends the calls of the request that goes on, and does not wait for that. For a request that has
  /// not begun it is remembered; for one that is over nothing happens.
  void abort(std::uint64_t request, const std::string& reason);

  [[nodiscard]] bool is_on() const { return is_on_; }
  /// Why the work was aborted; none if it was not. Whoever is woken by an end finds it.
  [[nodiscard]] std::optional<std::string> reason() const;

 private:
  void call_ends(const std::stop_token& stop);

  mutable Mutex mutex_;
  StoppableCondition changed_;
  std::uint64_t request_ FL_GUARDED_BY(mutex_) = 0;
  std::uint64_t aborted_ FL_GUARDED_BY(mutex_) = 0;  // The newest request that was aborted.
  std::uint64_t ended_ FL_GUARDED_BY(mutex_) = 0;    // The newest one whose ends were called.
  std::string reason_ FL_GUARDED_BY(mutex_);
  std::atomic<bool> is_on_ = false;
  Mutex ends_mutex_;  // Held while ends are called; taken before mutex_.
  std::list<End> ends_ FL_GUARDED_BY(ends_mutex_);
  std::jthread thread_;
};

}  // namespace fl::site
