// SPDX-License-Identifier: Apache-2.0
// Handles SIGINT (Ctrl-C) and SIGTERM: the first one asks the program to stop, the second one ends
// it immediately.
#pragma once

#include "shared/base/async/asio.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>

#include <csignal>
#include <functional>
#include <stop_token>
#include <thread>

namespace fl {

class StopSignals {
 public:
  explicit StopSignals(net::io_context& io);

  /// Calls `stop` at the first signal, once, in a thread of the io_context and on no strand. This
  /// object must live until `stop` has run or, after cancel(), until io_context::run() has
  /// returned.
  void on_stop(std::function<void()> stop);
  void cancel() { signals_.cancel(); }

 private:
  net::signal_set signals_;
};

/// Stops work before the main loop at the first signal.
class StopWhileStarting {
 public:
  StopWhileStarting();
  ~StopWhileStarting();
  StopWhileStarting(const StopWhileStarting&) = delete;
  StopWhileStarting& operator=(const StopWhileStarting&) = delete;
  [[nodiscard]] std::stop_token token() const { return stop_.get_token(); }

 private:
  net::io_context io_{1};
  StopSignals signals_;
  std::stop_source stop_;
  std::jthread thread_;
};

/// Threads that are started while this object exists block both signals, so that other threads (in
/// the end the main one) get them. Without it a signal may reach a thread that is just being
/// started, and ThreadSanitizer loses it there.
class WithoutStopSignals {
 public:
  WithoutStopSignals();
  ~WithoutStopSignals();
  WithoutStopSignals(const WithoutStopSignals&) = delete;
  WithoutStopSignals& operator=(const WithoutStopSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace fl
