// SPDX-License-Identifier: Apache-2.0
#include "shared/base/async/reload_signal.hpp"

#include <unistd.h>

#include <csignal>
#include <utility>

namespace fl {

namespace {

bool is_reload_wanted() {
  struct sigaction now {};
  ::sigaction(SIGHUP, nullptr, &now);
  return now.sa_handler != SIG_IGN && ::isatty(STDERR_FILENO) == 0;
}

}  // namespace

ReloadSignal::ReloadSignal(net::any_io_executor strand, std::function<void()> reload)
    : signals_(std::move(strand)), reload_(std::move(reload)) {
  if (!is_reload_wanted()) return;
  signals_.add(SIGHUP);
  wait();
}

void ReloadSignal::cancel() {
  boost::system::error_code ignored;
  signals_.clear(ignored);
  signals_.cancel(ignored);
}

void ReloadSignal::wait() {
  signals_.async_wait([this](const boost::system::error_code& ec, int) {
    if (ec) return;
    reload_();
    wait();
  });
}

}  // namespace fl
