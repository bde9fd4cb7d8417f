// Time, and the timers over it. Ordinarily the steady clock; while a SimulatedTime lives, time
// stands still until the simulator moves it, and everything that waits through Timer runs under it.
// Clock::now is safe from any thread; SimulatedTime belongs to the one thread of a simulation.
#pragma once

#include "shared/base/async/asio.hpp"

#include <boost/asio/basic_waitable_timer.hpp>

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
  /// Seconds since 1970, for records; never for measuring.
  static double unix_seconds() noexcept;
};

using TimePoint = Clock::time_point;
using Duration = Clock::duration;

inline constexpr TimePoint never = TimePoint::max();

[[nodiscard]] inline double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

/// One wait, until `time` or a cancel(). In a simulation Asio never sees it expire: SimulatedTime
/// cancels it when it is due, so whoever waits looks at the clock and not at the error code.
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
  std::optional<Place> place_;  // Among a simulation's timers, until it is due.
};

/// Waits until `time`; returns early (and quietly) when the coroutine is cancelled.
Awaitable<void> sleep_until(TimePoint time);
Awaitable<void> sleep_for(Duration duration);

/// How long to wait after `attempt` (from 0) to reach a peer has failed: exponential, between
/// limits::backoff_min and backoff_max, with full jitter. `jitter` from 0 to 1.
[[nodiscard]] Duration backoff_pause(int attempt, double jitter);

/// While it lives, Clock::now() is what it says. One at a time in the process.
class SimulatedTime {
 public:
  explicit SimulatedTime(double unix_start = 1.7e9);
  ~SimulatedTime();
  SimulatedTime(const SimulatedTime&) = delete;
  SimulatedTime& operator=(const SimulatedTime&) = delete;

  /// Runs everything that is ready in `context`, then moves time to the earliest timers and ends
  /// them, in the order in which they were made. False when nothing waits for a time that will
  /// come: the simulation has come to its end, or hangs.
  bool step(net::io_context& context);
  [[nodiscard]] Duration elapsed() const { return now_ - start_; }

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
