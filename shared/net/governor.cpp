// SPDX-License-Identifier: Apache-2.0
#include "shared/net/governor.hpp"

#include "shared/base/limits.hpp"

#include <algorithm>
#include <utility>

namespace fl {

TimePoint Governor::reserve(std::uint64_t bytes) {
  const double rate = this->rate();
  const TimePoint now = Clock::now();
  const std::lock_guard lock(mutex_);
  if (rate == unlimited) return now;
  const TimePoint begin = std::max(free_at_, now - Duration(limits::traffic_burst));
  const std::chrono::duration<double> takes(static_cast<double>(bytes) / rate);
  free_at_ = begin + std::chrono::duration_cast<Duration>(takes);
  return begin;
}

TimePoint Turns::advance(Governor& governor) {
  for (;;) {
    if (waiting_ > 0) {
      if (turn_at_ > Clock::now()) return turn_at_;
      spare_ += std::exchange(waiting_, 0);
    }
    const std::uint64_t passes = std::min(spare_, left_);
    spare_ -= passes;
    left_ -= passes;
    passed_ += passes;
    if (left_ == 0) return never;
    waiting_ = limits::traffic_quantum;
    turn_at_ = governor.reserve(waiting_);
  }
}

std::uint64_t Turns::take() { return std::exchange(passed_, 0); }

}  // namespace fl
