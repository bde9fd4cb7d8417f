// SPDX-License-Identifier: Apache-2.0
// The pulse of a strand: it beats only while the strand makes progress, and while what the strand
// waits for does. The service manager's watchdog and the probes of the admin pages live on it. One
// for a program; run() and stop() on the strand.
#pragma once

#include "shared/base/async/mailbox.hpp"
#include "shared/base/service_manager.hpp"

#include <atomic>
#include <functional>
#include <string>

namespace fl {

class Pulse {
 public:
  /// `look`, on the strand, returns the program's state, in a line for `systemctl status`. It may
  /// wait for what the strand depends on; while it does, the pulse does not beat.
  using Look = std::function<Awaitable<std::string>()>;

  Pulse(net::any_io_executor strand, ServiceManager manager);

  /// Beats until stop().
  Awaitable<void> run(Look look);
  void stop();
  /// The time since the last beat, or since the beginning. Any thread.
  [[nodiscard]] Duration age() const { return Clock::now() - TimePoint(Duration(beat_at_.load())); }

 private:
  const ServiceManager manager_;
  Duration every_;
  std::atomic<Duration::rep> beat_at_;
  Signal stopped_;
  bool is_stopped_ = false;
};

}  // namespace fl
