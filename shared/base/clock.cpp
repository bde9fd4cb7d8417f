#include "shared/base/clock.hpp"

#include "shared/base/error.hpp"

#include <boost/asio/as_tuple.hpp>

#include <atomic>

namespace fl {

namespace {

std::atomic<SimulatedTime*> simulated = nullptr;

}  // namespace

TimePoint Clock::now() noexcept {
  if (const auto* time = simulated.load(std::memory_order_acquire)) return time->now_;
  return TimePoint(std::chrono::steady_clock::now().time_since_epoch());
}

double Clock::unix_seconds() noexcept {
  if (const auto* time = simulated.load(std::memory_order_acquire)) {
    return time->unix_start_ + seconds(time->elapsed());
  }
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Duration ClockWaitTraits::to_wait_duration(const Duration& duration) {
  auto* time = simulated.load(std::memory_order_acquire);
  if (time == nullptr) return duration;
  // Asio asks how long to sleep for its earliest timer. In a simulation nobody sleeps: note the
  // time, and let the reactor look at its timers at once.
  time->earliest_ = time->now_ + duration;
  return Duration::zero();
}

Awaitable<void> sleep_until(TimePoint time) {
  Timer timer(co_await net::this_coro::executor, time);
  co_await timer.async_wait(net::as_tuple(net::use_awaitable));
}

Awaitable<void> sleep_for(Duration duration) { return sleep_until(Clock::now() + duration); }

SimulatedTime::SimulatedTime(double unix_start) : unix_start_(unix_start) {
  SimulatedTime* none = nullptr;
  FL_ASSERT(simulated.compare_exchange_strong(none, this));
}

SimulatedTime::~SimulatedTime() { simulated.store(nullptr, std::memory_order_release); }

bool SimulatedTime::step(net::io_context& context) {
  for (;;) {
    earliest_.reset();
    context.restart();
    if (context.poll() == 0) break;
  }
  if (!earliest_ || *earliest_ == never) return false;
  if (*earliest_ > now_) now_ = *earliest_;
  return true;
}

}  // namespace fl
