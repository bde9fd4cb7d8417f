// SPDX-License-Identifier: Apache-2.0
// How fast a port accepts connections: so many in a turn. What comes beyond waits in the system's
// queue, so those who open anew what is closed are slowed down. On the strand, or the thread, that
// accepts.
#pragma once

#include "shared/base/async/clock.hpp"
#include "shared/base/limits.hpp"

#include <algorithm>
#include <cstddef>

namespace fl {

class AcceptPace {
 public:
  explicit AcceptPace(std::size_t of_turn = limits::accepts_of_turn, TimePoint now = Clock::now())
      : of_turn_(of_turn), turn_(now) {}

  /// Counts a connection that was accepted at `now`, and returns when the next one may be accepted.
  [[nodiscard]] TimePoint next(TimePoint now) {
    if (++accepted_ < of_turn_) return now;
    accepted_ = 0;
    turn_ = std::max<TimePoint>(now, turn_ + limits::accept_turn);
    return turn_;
  }

 private:
  std::size_t of_turn_;
  TimePoint turn_;  // When this turn began.
  std::size_t accepted_ = 0;
};

}  // namespace fl
