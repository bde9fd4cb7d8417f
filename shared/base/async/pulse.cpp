// SPDX-License-Identifier: Apache-2.0
#include "shared/base/async/pulse.hpp"

#include "shared/base/limits.hpp"

#include <algorithm>
#include <utility>

namespace fl {

Pulse::Pulse(net::any_io_executor strand, ServiceManager manager)
    : manager_(std::move(manager)),
      every_(limits::pulse_every),
      beat_at_(Clock::now().time_since_epoch().count()),
      stopped_(std::move(strand)) {
  // Beats twice in the time that the watchdog allows, so that one late beat does no harm.
  if (const auto watchdog = manager_.watchdog()) every_ = std::min<Duration>(every_, *watchdog / 2);
}

Awaitable<void> Pulse::run(Look look) {
  std::string told;
  while (!is_stopped_) {
    std::string status = co_await look();
    beat_at_ = Clock::now().time_since_epoch().count();
    manager_.feed_watchdog();
    if (status != told) manager_.status(status);
    told = std::move(status);
    if (!is_stopped_) co_await stopped_.wait(Clock::now() + every_);
  }
}

void Pulse::stop() {
  is_stopped_ = true;
  stopped_.notify();
}

}  // namespace fl
