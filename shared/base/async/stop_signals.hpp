// Ctrl-C and SIGTERM: the first asks the program to stop, the next ends it at once.
#pragma once

#include "shared/base/async/asio.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>

#include <csignal>
#include <functional>

namespace fl {

class StopSignals {
 public:
  explicit StopSignals(net::io_context& io);

  /// `stop` runs once, in a thread of the io_context, on no strand. This object outlives the wait:
  /// until `stop` has run, or after cancel() the io_context's loop has ended.
  void on_stop(std::function<void()> stop);
  void cancel() { signals_.cancel(); }

 private:
  net::signal_set signals_;
};

/// Threads that are made while it lives leave those two signals to the other threads, in the end to
/// the main one. Without it, one may be given to a thread that is not ready for it yet: while a
/// thread is made the C library blocks all signals in its maker (ThreadSanitizer loses such a one).
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
