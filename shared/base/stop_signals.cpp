#include "shared/base/stop_signals.hpp"

#include "shared/base/log.hpp"

#include <utility>

namespace fl {

void StopSignals::on_stop(std::function<void()> stop) {
  signals_.async_wait([stop = std::move(stop)](const boost::system::error_code& ec, int) {
    if (ec) return;
    log_info("stopping; once more ends at once");
    stop();
    std::signal(SIGINT, SIG_DFL);
    std::signal(SIGTERM, SIG_DFL);
  });
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
