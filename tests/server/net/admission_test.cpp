// SPDX-License-Identifier: Apache-2.0
// Admission over a long time: the server's certificate is renewed when it is due, and a client
// learns whether it may never come in or only not now.
#include "server/net/admission.hpp"
#include "shared/base/log.hpp"
#include "tests/server/history/store_world.hpp"
#include "tests/server/net/fake_host.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/temporary_folder.hpp"

#include <functional>
#include <optional>

namespace fl::test {

using namespace fl::server;
namespace {

constexpr double day = 24 * 3600;
constexpr double some_time = 1.8e9;

struct AdmissionWorld {
  std::optional<SimulatedTime> time;
  net::io_context io{1};
  TemporaryFolder temp;
  StoreWorld store;
  Offload workers;
  std::optional<Authority> authority;
  std::optional<StoreThread> thread;
  std::optional<FakeHosts> hosts;
  std::optional<Admission> admission;

  /// `prepare` gets the store before anything else uses it.
  explicit AdmissionWorld(const std::function<void(Store&)>& prepare = nullptr) {
    set_log_level(LogLevel::off);
    time.emplace(some_time);
    store.run = store.store->runs().create(some_run()).value().id;
    if (prepare) prepare(*store.store);
    store.reopen();
    authority.emplace(
        Authority::open_or_create(posix_files(), temp / "ca", Clock::unix_seconds()).value());
    hosts.emplace(io.get_executor());
    thread.emplace(io.get_executor(), *store.store, workers, 0,
                   StoreThread::Hooks{[](const Error&) {}});
    admission.emplace(*hosts, *thread, *authority, std::vector<std::string>{"localhost"}, 100);
  }

  void step() {
    while (time->step(io)) continue;
  }

  static Awaitable<void> admit(AdmissionWorld& world, std::string name, std::string serial,
                               Result<void>& result) {
    const auto place = co_await world.admission->admit(std::move(name), std::move(serial));
    result = place ? success() : Result<void>(place.error());
  }
  Result<void> admit(std::string name, std::string serial) {
    Result<void> result = Error(Errc::internal, "no answer");
    net::co_spawn(io, admit(*this, std::move(name), std::move(serial), result), rethrow);
    step();
    return result;
  }

  static Awaitable<void> stop_after(std::shared_ptr<std::atomic<bool>> stop, Duration wait) {
    co_await sleep_for(wait);
    *stop = true;
  }
  /// Lets the watch run for 10 s that begin at this time.
  void watch_at(double unix_start) {
    time.reset();
    time.emplace(unix_start);
    const auto stop = std::make_shared<std::atomic<bool>>(false);
    HistoryChanges changes(io.get_executor(), {});
    net::co_spawn(io, admission->watch(changes, stop), rethrow);
    net::co_spawn(io, stop_after(stop, std::chrono::seconds(10)), rethrow);
    step();
  }
};

TEST_CASE("the server's certificate is renewed when it is due, and only then") {
  AdmissionWorld world;
  REQUIRE(world.admission->renew_certificate());
  const auto first = world.admission->tls();
  const double due =
      world.authority->issue_server({"localhost"}, some_time).value().life.renew_at();
  CHECK(due > some_time + day);
  world.watch_at(due - day);
  CHECK(world.admission->tls() == first);
  world.watch_at(due + 1);
  const auto second = world.admission->tls();
  CHECK(second != first);
  world.watch_at(due + day);
  CHECK(world.admission->tls() == second);
  world.watch_at(due + (due - some_time) + 10);
  CHECK(world.admission->tls() != second);
}

/// Enrols alice and bob in the history, and revokes bob.
void enrol_two(Store& store) {
  for (const std::string name : {"alice", "bob"}) {
    TokenRecord token;
    token.id = "token-of-" + name;
    token.name = name;
    token.secret_hash = std::string(64, 'a');
    token.expires_at = some_time + day;
    store.members().add_token(token).value();
    ClientRecord client;
    client.name = name;
    client.certificate_serial = "serial-of-" + name;
    client.enrolled_at = some_time;
    store.members().use_token(token.id, client, std::string(64, 'b')).value();
  }
  store.members().revoke("bob", "root").value();
}

TEST_CASE("admission refuses for good whom the history does not let in") {
  AdmissionWorld world(enrol_two);
  CHECK(world.admit("alice", "serial-of-alice"));
  CHECK(world.admit("alice", "another").error().code() == Errc::unauthenticated);
  CHECK(world.admit("bob", "serial-of-bob").error().code() == Errc::unauthenticated);
  CHECK(world.admit("nobody", "1").error().code() == Errc::unauthenticated);
}

TEST_CASE("who is refused takes no place of the member's") {
  AdmissionWorld world(enrol_two);
  for (int i = 0; i < 100; ++i)
    CHECK(world.admit("alice", "stolen").error().code() == Errc::unauthenticated);
  CHECK(world.admit("alice", "serial-of-alice"));
}

TEST_CASE("a token may be used again by its key, some times at once and then slowly") {
  AdmissionWorld world(enrol_two);
  RepeatedEnrolments repeats;
  StoreTokenBook book(world.store.store->members(), repeats);
  const auto again = [&] {
    return book.use_token("token-of-alice", "alice", "serial", std::string(64, 'b'), some_time);
  };
  for (int i = 0; i < static_cast<int>(limits::repeated_enrolments); ++i) CHECK(again());
  CHECK(again().error().code() == Errc::unavailable);
  const auto is_over = std::make_shared<std::atomic<bool>>(false);
  net::co_spawn(world.io, world.stop_after(is_over, std::chrono::seconds(10)), rethrow);
  world.step();
  REQUIRE(*is_over);
  CHECK(again());
  CHECK(again().error().code() == Errc::unavailable);
}

TEST_CASE("the hosts are told what another process has written about clients, and a run's end") {
  AdmissionWorld world([](Store& store) {
    enrol_two(store);
    store.members().pardon("alice").value();
    store.runs().end_early(1, "an operator has ended it").value();
  });
  world.watch_at(some_time);
  CHECK(world.hosts->host->calls ==
        std::vector<std::string>{"the run ends: an operator has ended it", "alice is pardoned",
                                 "bob is revoked"});
}

TEST_CASE("a client that the history can't be asked about is told to come again") {
  AdmissionWorld world(enrol_two);
  world.store.files.kill();  // Files that are open give errors from now on.
  for (const char* const name : {"alice", "bob", "nobody"}) {
    const auto admitted = world.admit(name, "serial");
    REQUIRE(!admitted);
    CHECK(admitted.error().code() == Errc::unavailable);
  }
}

}  // namespace
}  // namespace fl::test
