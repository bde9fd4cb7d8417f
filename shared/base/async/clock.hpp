// SPDX-License-Identifier: Apache-2.0
// The clock and the timers of this program. Normally this is the steady clock. While a
// SimulatedTime object exists, time stands still until the simulator moves it, and every wait that
// uses Timer follows the simulated time.
//
// Clock::now() may be called from any thread. A SimulatedTime is used by the one thread of its
// simulation.
#pragma once

#include "shared/base/async/asio.hpp"

#include <boost/asio/basic_waitable_timer.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>

namespace fl {

struct Clock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<Clock>;
  static constexpr bool is_steady = true;

  static time_point now() noexcept;
  /// Wall-clock time in seconds since 1970. Use it for records, never to measure a duration.
  static double unix_seconds() noexcept;
};

using TimePoint = Clock::time_point;
using Duration = Clock::duration;

inline constexpr TimePoint never = TimePoint::max();

[[nodiscard]] inline double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

/// The duration of so many seconds: at least zero, at most ten years, and zero for NaN.
[[nodiscard]] inline Duration duration_of(double seconds) {
  constexpr double years = 10.0 * 365 * 24 * 60 * 60;
  const double bounded = seconds > 0 ? std::min(seconds, years) : 0.0;
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(bounded));
}

/// One wait, which ends at `time` or at cancel(). In a simulation Asio never sees the timer expire:
/// SimulatedTime cancels it when it is due. So check the clock after a wait, not the error code.
class Timer : public net::basic_waitable_timer<Clock> {
 public:
  Timer(const net::any_io_executor& executor, TimePoint time);
  Timer(const net::any_io_executor& executor, Duration wait)
      : Timer(executor, Clock::now() + wait) {}
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  friend class SimulatedTime;
  using Place = std::multimap<TimePoint, Timer*>::iterator;
  std::optional<Place> place_;  // Place among the simulation's timers, until the timer is due.
};

/// Waits until `time`. Returns early, without an error, when the coroutine is cancelled.
Awaitable<void> sleep_until(TimePoint time);
Awaitable<void> sleep_for(Duration duration);

/// The pause after a failed attempt to reach a peer. `attempt` counts from 0. The pause is
/// backoff_min / 2 plus `jitter` (a random number from 0 to 1) times a limit that doubles with each
/// attempt, from limits::backoff_min to backoff_max.
[[nodiscard]] Duration backoff_pause(int attempt, double jitter);

/// While an object of this class exists, it decides what Clock::now() returns. A process has at
/// most one at a time.
class SimulatedTime {
 public:
  explicit SimulatedTime(double unix_start = 1.7e9);
  ~SimulatedTime();
  SimulatedTime(const SimulatedTime&) = delete;
  SimulatedTime& operator=(const SimulatedTime&) = delete;

  /// Runs everything that is ready in `context`. Then moves time to the earliest due time and ends
  /// the timers that are due, in the order in which they were made. Returns false when no timer
  /// waits for a finite time: the simulation is over, or it hangs.
  bool step(net::io_context& context);
  [[nodiscard]] Duration elapsed() const { return now_ - start_; }
  /// Sets the wall clock by this many seconds. Timers and Clock::now() don't notice.
  void set_wall_clock(double by) { unix_start_ += by; }

 private:
  friend struct Clock;
  friend class Timer;
  static TimePoint start() { return TimePoint(std::chrono::hours(1)); }

  TimePoint start_ = start();
  TimePoint now_ = start_;
  double unix_start_;
  std::multimap<TimePoint, Timer*> timers_;
};

}  // namespace fl
