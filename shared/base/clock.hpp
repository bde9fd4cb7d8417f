// Time, and the timers over it. Ordinarily the steady clock; while a SimulatedTime lives, time
// stands still until the simulator moves it, and everything that waits through Timer runs under it.
// Clock::now is safe from any thread; SimulatedTime belongs to the one thread of a simulation.
#pragma once

#include "shared/base/asio.hpp"

#include <boost/asio/basic_waitable_timer.hpp>

#include <chrono>
#include <cstdint>
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

/// The wait traits that tell a simulation when the earliest timer is due.
struct ClockWaitTraits {
  static Duration to_wait_duration(const Duration& duration);
  static Duration to_wait_duration(const TimePoint& time) {
    return to_wait_duration(time - Clock::now());
  }
};

using Timer = net::basic_waitable_timer<Clock, ClockWaitTraits>;

/// Waits until `time`; returns early (and quietly) when the coroutine is cancelled.
Awaitable<void> sleep_until(TimePoint time);
Awaitable<void> sleep_for(Duration duration);

/// While it lives, Clock::now() is what it says. One at a time in the process.
class SimulatedTime {
 public:
  explicit SimulatedTime(double unix_start = 1.7e9);
  ~SimulatedTime();
  SimulatedTime(const SimulatedTime&) = delete;
  SimulatedTime& operator=(const SimulatedTime&) = delete;

  /// Runs everything that is ready in `context`, then moves time to the earliest timer. False when
  /// nothing is ready and nothing waits: the simulation has come to its end, or hangs.
  bool step(net::io_context& context);
  [[nodiscard]] Duration elapsed() const { return now_ - start_; }

 private:
  friend struct Clock;
  friend struct ClockWaitTraits;
  static TimePoint start() { return TimePoint(std::chrono::hours(1)); }

  TimePoint start_ = start();
  TimePoint now_ = start_;
  double unix_start_;
  std::optional<TimePoint> earliest_;
};

}  // namespace fl
