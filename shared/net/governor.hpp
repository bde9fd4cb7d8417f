// SPDX-License-Identifier: Apache-2.0
// Governor: keeps all bulk traffic of a program, in one direction, within a RateSchedule. It is a
// token bucket that connections share. Each reserves its bytes in pieces of one size (Turns for
// what we send, PeerCredit for what we receive) and waits for one before it reserves the next, so
// that they take turns and get equal shares. Any thread.
#pragma once

#include "shared/base/async/clock.hpp"
#include "shared/base/async/mutex.hpp"
#include "shared/net/rate_schedule.hpp"

#include <atomic>
#include <cstdint>
#include <memory>

namespace fl {

class Governor {
 public:
  explicit Governor(RateSchedule schedule)
      : schedule_(std::move(schedule)), is_limited_(schedule_.is_limited()) {}

  /// Changes the schedule from now on. Bytes that are reserved and have not passed must be reserved
  /// again: epoch() tells.
  void change(RateSchedule schedule);
  /// Grows with each change().
  [[nodiscard]] std::uint64_t epoch() const { return epoch_; }
  /// Whether there is a limit at any time of the day.
  [[nodiscard]] bool is_limited() const { return is_limited_; }

  /// Reserves the next `bytes` of the rate. Returns when they may be sent: now, or later.
  [[nodiscard]] TimePoint reserve(std::uint64_t bytes);
  /// Counts bytes that have passed without a reservation. Later reservations make up for them.
  void charge(std::uint64_t bytes) { [[maybe_unused]] const TimePoint unused = reserve(bytes); }

 private:
  Mutex mutex_;
  RateSchedule schedule_ FL_GUARDED_BY(mutex_);
  /// When all reserved bytes have been sent, at the rate.
  TimePoint free_at_ FL_GUARDED_BY(mutex_){};
  std::atomic<std::uint64_t> epoch_ = 0;
  std::atomic<bool> is_limited_;
};

/// The governors of a program's traffic; null: no limit, for ever.
struct Governors {
  std::shared_ptr<Governor> up;    // For the bytes that it sends.
  std::shared_ptr<Governor> down;  // For the bytes that it receives.
};

/// The turns of one connection. It reserves whole quanta, and keeps the rest of one for its next
/// message: otherwise those who send small messages would get less.
class Turns {
 public:
  /// Adds bytes that are to pass.
  void add(std::uint64_t bytes) { left_ += bytes; }

  /// Lets pass the bytes that may pass now, and reserves a quantum for the rest. Returns when to
  /// call again; `never`: nothing is left.
  [[nodiscard]] TimePoint advance(Governor& governor);
  /// The bytes that passed since the last call of take().
  [[nodiscard]] std::uint64_t take();
  /// The bytes that have not passed.
  [[nodiscard]] std::uint64_t left() const { return left_; }

 private:
  std::uint64_t left_ = 0;
  std::uint64_t waiting_ = 0;  // Reserved, from `turn_at_` on.
  std::uint64_t spare_ = 0;    // Reserved, and not used.
  std::uint64_t passed_ = 0;
  TimePoint turn_at_{};
  std::uint64_t epoch_ = 0;  // The governor's epoch() when that was reserved.
};

}  // namespace fl
