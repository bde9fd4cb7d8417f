// SPDX-License-Identifier: Apache-2.0
#include "shared/net/governor.hpp"

#include "shared/base/limits.hpp"

#include <algorithm>
#include <utility>

namespace fl {

TimePoint Governor::reserve(std::uint64_t bytes) {
  const TimePoint now = Clock::now();
  if (!is_limited_) return now;
  const MutexLock lock(mutex_);
  const double rate = schedule_.at(Clock::unix_seconds());
  if (rate == unlimited) return now;
  const TimePoint begin = std::max(free_at_, now - Duration(limits::traffic_burst));
  const std::chrono::duration<double> takes(static_cast<double>(bytes) / rate);
  free_at_ = begin + std::chrono::duration_cast<Duration>(takes);
  return begin;
}

void Governor::change(RateSchedule schedule) {
  const MutexLock lock(mutex_);
  schedule_ = std::move(schedule);
  is_limited_ = schedule_.is_limited();
  // Turns at the old rate may be hours away.
  free_at_ = std::min(free_at_, Clock::now());
  ++epoch_;
}

TimePoint Turns::advance(Governor& governor) {
  for (;;) {
    if (waiting_ > 0) {
      if (const auto epoch = governor.epoch(); std::exchange(epoch_, epoch) != epoch)
        turn_at_ = governor.reserve(waiting_);
      if (turn_at_ > Clock::now()) return turn_at_;
      spare_ += std::exchange(waiting_, 0);
    }
    const std::uint64_t passes = std::min(spare_, left_);
    spare_ -= passes;
    left_ -= passes;
    passed_ += passes;
    if (left_ == 0) return never;
    waiting_ = limits::traffic_quantum;
    epoch_ = governor.epoch();
    turn_at_ = governor.reserve(waiting_);
  }
}

std::uint64_t Turns::take() { return std::exchange(passed_, 0); }

}  // namespace fl
