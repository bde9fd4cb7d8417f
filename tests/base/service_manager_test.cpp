// SPDX-License-Identifier: Apache-2.0
// What a service manager hears, and when the pulse that feeds its watchdog stands still.
#include "shared/base/service_manager.hpp"
#include "shared/base/async/offload.hpp"
#include "shared/base/async/pulse.hpp"
#include "tests/support/temporary_folder.hpp"

#include <boost/asio/co_spawn.hpp>

#include <doctest/doctest.h>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>

namespace fl::test {
namespace {

using namespace std::chrono_literals;

/// A socket like the manager's.
class Inbox {
 public:
  explicit Inbox(const std::string& name) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name.front() == '@') address.sun_path[0] = '\0';
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    REQUIRE(::bind(socket_, reinterpret_cast<const sockaddr*>(&address), length) == 0);
  }
  ~Inbox() { ::close(socket_); }
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  /// The next message; "" if none comes in `wait`.
  std::string next(std::chrono::milliseconds wait = 5s) const {
    pollfd readable{socket_, POLLIN, 0};
    if (::poll(&readable, 1, static_cast<int>(wait.count())) != 1) return "";
    char text[4096];
    const auto bytes = ::recv(socket_, text, sizeof text, 0);
    return {text, static_cast<std::size_t>(bytes)};
  }
  void drain() const {
    while (!next(0ms).empty()) {
    }
  }

 private:
  const int socket_ = ::socket(AF_UNIX, SOCK_DGRAM, 0);
};

/// An io_context with two threads, so that one strand can hang.
struct Threads {
  net::io_context io;
  net::executor_work_guard<net::io_context::executor_type> work = net::make_work_guard(io);
  std::jthread one{[this] { io.run(); }};
  std::jthread two{[this] { io.run(); }};
  ~Threads() {
    work.reset();
    io.stop();
  }
};

/// A pulse on a strand, which ends before this object does.
struct Beating {
  Beating(net::any_io_executor on, const std::string& socket, Pulse::Look look)
      : strand(std::move(on)), pulse(strand, ServiceManager(socket, 40ms)) {
    net::co_spawn(strand, pulse.run(std::move(look)),
                  [this](const std::exception_ptr&) { ended.set_value(); });
  }
  ~Beating() {
    net::post(strand, [this] { pulse.stop(); });
    ended.get_future().wait();
  }
  net::any_io_executor strand;
  Pulse pulse;
  std::promise<void> ended;
};

Awaitable<std::string> fine() { co_return "fine"; }

Awaitable<std::string> ask(Offload& worker) {
  auto work = [] { return std::string("asked"); };
  co_return co_await worker.run(std::move(work));
}

}  // namespace

TEST_CASE("the service manager gets one datagram for each state, by path or abstract name") {
  const TemporaryFolder folder;
  for (const std::string& name : {(folder / "notify").string(),
                                  std::string("@tributary-test-") + std::to_string(::getpid())}) {
    CAPTURE(name);
    const Inbox inbox(name);
    const ServiceManager manager(name, 2s);
    manager.ready();
    CHECK(inbox.next() == "READY=1");
    manager.status("round 1\nREADY=1");
    CHECK(inbox.next() == "STATUS=round 1");
    manager.feed_watchdog();
    CHECK(inbox.next() == "WATCHDOG=1");
    manager.reloading();
    CHECK(inbox.next().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    manager.stopping();
    CHECK(inbox.next() == "STOPPING=1");
    ServiceManager(name, std::nullopt).feed_watchdog();
    CHECK(inbox.next(0ms).empty());
  }
  // A manager that is gone, or a name that can't be one, is a line in the log and nothing more.
  for (const std::string name : {"/nonexistent/notify", "relative", "/"}) {
    ServiceManager(name + (name == "/" ? std::string(200, 'x') : ""), 2s).ready();
  }
  ServiceManager().ready();
}

TEST_CASE("the environment names the manager, and children do not inherit it") {
  const auto take = [](const char* usec, const std::string& pid) {
    ::setenv("NOTIFY_SOCKET", "@somewhere", 1);
    ::setenv("WATCHDOG_USEC", usec, 1);
    if (!pid.empty()) ::setenv("WATCHDOG_PID", pid.c_str(), 1);
    auto manager = ServiceManager::take_from_environment();
    for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
      CHECK(std::getenv(name) == nullptr);
    return manager;
  };
  const std::string self = std::to_string(::getpid());
  CHECK(take("3000000", self).watchdog() == 3s);
  CHECK(take("3000000", "").watchdog() == 3s);
  CHECK(take("3000000", "1").is_present());
  CHECK(!take("3000000", "1").watchdog());
  for (const char* wrong : {"0", "-1", "3s", ""}) CHECK(!take(wrong, self).watchdog());
  CHECK(!ServiceManager::take_from_environment().is_present());
}

TEST_CASE("a strand that hangs does not feed the watchdog, and feeds it again when it goes on") {
  const TemporaryFolder folder;
  const std::string name = (folder / "notify").string();
  const Inbox inbox(name);
  Threads threads;
  const net::any_io_executor strand = net::make_strand(threads.io);
  auto beating = std::make_unique<Beating>(strand, name, fine);
  const Pulse& pulse = beating->pulse;
  CHECK(inbox.next() == "WATCHDOG=1");
  CHECK(inbox.next() == "STATUS=fine");
  CHECK(inbox.next() == "WATCHDOG=1");  // The status is told when it changes.

  std::promise<void> hangs;
  std::promise<void> release;
  net::post(strand, [&] {
    hangs.set_value();
    release.get_future().wait();
  });
  hangs.get_future().wait();
  inbox.drain();
  CHECK(inbox.next(400ms).empty());
  CHECK(pulse.age() > 350ms);
  release.set_value();
  CHECK(inbox.next() == "WATCHDOG=1");
  CHECK(pulse.age() < 350ms);

  beating.reset();
  inbox.drain();
  CHECK(inbox.next(200ms).empty());
}

TEST_CASE("a worker that hangs stops the pulse of the strand that waits for it") {
  const TemporaryFolder folder;
  const std::string name = (folder / "notify").string();
  const Inbox inbox(name);
  Offload worker(1);
  Threads threads;
  const net::any_io_executor strand = net::make_strand(threads.io);
  std::promise<void> release;
  auto hang = [&] { release.get_future().wait(); };
  net::co_spawn(strand, worker.run(hang), rethrow);
  const Beating beating(strand, name, [&worker] { return ask(worker); });
  CHECK(inbox.next(400ms).empty());
  release.set_value();
  CHECK(inbox.next() == "WATCHDOG=1");
  CHECK(inbox.next() == "STATUS=asked");
}

}  // namespace fl::test
