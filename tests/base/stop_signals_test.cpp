// SPDX-License-Identifier: Apache-2.0
#include "shared/base/async/stop_signals.hpp"
#include "shared/base/async/offload.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include <doctest/doctest.h>

#include <unistd.h>

#include <optional>
#include <thread>

namespace fl {
namespace {

bool leaves_stop_signals() {
  sigset_t blocked;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  return sigismember(&blocked, SIGINT) == 1 && sigismember(&blocked, SIGTERM) == 1;
}

TEST_CASE(
    "threads made under WithoutStopSignals leave these signals to the thread that made them") {
  bool inside = false;
  std::thread worker;
  {
    const WithoutStopSignals guard;
    worker = std::thread([&inside] { inside = leaves_stop_signals(); });
  }
  worker.join();
  CHECK(inside);
  CHECK_FALSE(leaves_stop_signals());
}

TEST_CASE("the first stop signal calls on_stop, and worker threads take no stop signals") {
  net::io_context io;
  StopSignals signals(io);
  int asked = 0;
  signals.on_stop([&asked] { ++asked; });
  Offload worker(1);
  std::optional<bool> inside;
  auto look = [] { return leaves_stop_signals(); };
  auto ask_worker = [&]() -> Awaitable<void> {
    inside = co_await worker.run(look);
    ::kill(::getpid(), SIGTERM);
  };
  net::co_spawn(io, ask_worker(), net::detached);
  io.run();
  CHECK(inside == true);
  CHECK(asked == 1);
  struct sigaction next {};
  ::sigaction(SIGTERM, nullptr, &next);
  const bool ends_at_once = next.sa_handler == SIG_DFL;
  CHECK(ends_at_once);
}

TEST_CASE("after cancel() on_stop is not called") {
  net::io_context io;
  StopSignals signals(io);
  int asked = 0;
  signals.on_stop([&asked] { ++asked; });
  signals.cancel();
  io.run();
  CHECK(asked == 0);
}

}  // namespace
}  // namespace fl
