// SPDX-License-Identifier: Apache-2.0
#include "shared/base/async/stop_signals.hpp"

#include "shared/base/log.hpp"

#include <unistd.h>

#include <utility>

namespace fl {

StopSignals::StopSignals(net::io_context& io) : signals_(io) {
#ifdef FL_SANITIZED
  // ThreadSanitizer (SigCtx in compiler-rt 14) allocates a thread's list of signals at the thread's
  // first call that may block, and loses a signal that arrives meanwhile. Make such a call now.
  ::usleep(1);
#endif
  signals_.add(SIGINT);
  signals_.add(SIGTERM);
}

void StopSignals::on_stop(std::function<void()> stop) {
  signals_.async_wait([stop = std::move(stop)](const boost::system::error_code& ec, int) {
    if (ec) return;
    log_info("stopping (Ctrl-C again quits immediately)");
    stop();
    std::signal(SIGINT, SIG_DFL);
    std::signal(SIGTERM, SIG_DFL);
  });
}

StopWhileStarting::StopWhileStarting() : signals_(io_) {
  signals_.on_stop([this] { stop_.request_stop(); });
  thread_ = std::jthread([this] { io_.run(); });
}

StopWhileStarting::~StopWhileStarting() {
  signals_.cancel();
  io_.stop();
}

WithoutStopSignals::WithoutStopSignals() {
  sigset_t both;
  sigemptyset(&both);
  sigaddset(&both, SIGINT);
  sigaddset(&both, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &both, &before_);
}

WithoutStopSignals::~WithoutStopSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

}  // namespace fl
