// SPDX-License-Identifier: Apache-2.0
#include "shared/base/async/clock.hpp"

#include "shared/base/error.hpp"
#include "shared/base/limits.hpp"

#include <boost/asio/as_tuple.hpp>

#include <algorithm>
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

Timer::Timer(const net::any_io_executor& executor, TimePoint time)
    : basic_waitable_timer(executor, simulated.load(std::memory_order_acquire) ? never : time) {
  if (auto* const simulation = simulated.load(std::memory_order_acquire)) {
    place_ = simulation->timers_.emplace(time, this);
  }
}

Timer::~Timer() {
  auto* const simulation = simulated.load(std::memory_order_acquire);
  if (place_ && simulation != nullptr) simulation->timers_.erase(*place_);
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
  context.restart();
  context.poll();
  if (timers_.empty() || timers_.begin()->first == never) return false;
  now_ = std::max(now_, timers_.begin()->first);
  while (!timers_.empty() && timers_.begin()->first <= now_) {
    Timer* const due = timers_.begin()->second;
    timers_.erase(timers_.begin());
    due->place_.reset();
    due->cancel();
  }
  return true;
}

Duration backoff_pause(int attempt, double jitter) {
  const auto limit =
      std::min<Duration>(limits::backoff_max, limits::backoff_min * (1 << std::min(attempt, 10)));
  return limits::backoff_min / 2 + std::chrono::duration_cast<Duration>(limit * jitter);
}

}  // namespace fl
