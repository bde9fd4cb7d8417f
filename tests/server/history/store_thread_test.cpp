// SPDX-License-Identifier: Apache-2.0
// The store's thread: it waits for the disk and the database, records events, and reports a broken
// store.
#include "server/history/store_thread.hpp"
#include "tests/server/history/store_world.hpp"
#include "tests/wire/simulation.hpp"

#include <doctest/doctest.h>

namespace fl::test {

using namespace fl::server;
namespace {

struct ThreadWorld {
  Simulation simulation;
  StoreWorld store;
  Offload thread;
  std::optional<Error> failure;
  int freed = 0;
  StoreThread way{simulation.io.get_executor(),
                  *store.store,
                  thread,
                  0,
                  {[this](const Error& error) { failure = error; },
                   [this]() -> Result<void> {
                     ++freed;
                     return {};
                   }}};

  std::vector<std::string> events() {
    std::vector<std::string> found;
    for (const auto& event : store.store->events().all(std::nullopt).value())
      found.push_back(event.text);
    return found;
  }
};

/// Returns `code` for the first `times` calls, then success.
class Calls {
 public:
  static Awaitable<void> run(ThreadWorld& world, Errc code, int times, Result<void>& result) {
    int made = 0;
    auto work = [&made, code, times](Store&) -> Result<void> {
      if (made++ < times) return Error(code, "not now");
      return {};
    };
    result = co_await world.way.with_store(std::move(work));
  }
};

TEST_CASE("a call waits while the disk is full, and this is reported once") {
  ThreadWorld world;
  Result<void> result = Error();
  world.simulation.spawn(Calls::run(world, Errc::no_space, 5, result));
  const TimePoint began = Clock::now();
  world.simulation.run();
  CHECK(result.has_value());
  CHECK(Clock::now() - began == 5 * limits::full_disk_pause);
  CHECK(world.way.why_paused().empty());
  CHECK(world.events() == std::vector<std::string>{"paused, the disk is full: not now"});
  CHECK_FALSE(world.failure);
}

TEST_CASE("calls are counted until they come back, events by themselves too") {
  ThreadWorld world;
  Offload slow([] { return Duration(std::chrono::milliseconds(10)); });
  StoreThread way(world.simulation.io.get_executor(), *world.store.store, slow, 0,
                  {[](const Error&) {}});
  class Caller {
   public:
    static Awaitable<void> run(StoreThread& of) {
      auto nothing = [](Store&) { return success(); };
      const auto done = co_await of.with_store(std::move(nothing));
      CHECK(done.has_value());
    }
  };
  world.simulation.spawn(Caller::run(way));
  world.simulation.spawn(Caller::run(way));
  way.record_event(EventLevel::info, "one");
  CHECK(world.simulation.time.step(world.simulation.io));  // The first comes back.
  CHECK(way.calls_under_way() == 3);
  CHECK(way.events_under_way() == 1);
  world.simulation.run();
  CHECK(way.calls_under_way() == 0);
  CHECK(way.events_under_way() == 0);
}

TEST_CASE("after stop() a waiting call returns its error") {
  ThreadWorld world;
  Result<void> result = success();
  world.way.stop();
  world.simulation.spawn(Calls::run(world, Errc::unavailable, 1000, result));
  world.simulation.run();
  REQUIRE(!result);
  CHECK(result.error().code() == Errc::unavailable);
}

TEST_CASE("a broken store is reported to its owner; a caller's mistake is only returned") {
  ThreadWorld world;
  Result<void> result = success();
  world.simulation.spawn(Calls::run(world, Errc::conflict, 1, result));
  world.simulation.run();
  CHECK(result.error().code() == Errc::conflict);
  CHECK_FALSE(world.failure);
  world.simulation.spawn(Calls::run(world, Errc::io, 1, result));
  world.simulation.run();
  CHECK(result.error().code() == Errc::io);
  REQUIRE(world.failure);
  CHECK(world.failure->code() == Errc::io);
}

TEST_CASE("a job on a full disk first frees space, then continues") {
  ThreadWorld world;
  class Work {
   public:
    static Awaitable<void> run(ThreadWorld& of, int& made) {
      auto work = [&made]() -> Result<int> {
        if (++made < 3) return Error(Errc::no_space, "full");
        return 7;
      };
      const auto result = co_await of.way.with_room(of.thread, std::move(work));
      CHECK(result.value() == 7);
    }
  };
  int made = 0;
  world.simulation.spawn(Work::run(world, made));
  world.simulation.run();
  CHECK(made == 3);
  CHECK(world.freed == 1);
}

TEST_CASE("events are recorded until close()") {
  ThreadWorld world;
  const RunId run = world.store.store->runs().create(some_run()).value().id;
  world.way.record_event(EventLevel::info, "of no run");
  world.way.report(EventLevel::warning, "of a run", run);
  world.simulation.run();
  world.way.close();
  world.way.record_event(EventLevel::info, "too late");
  world.simulation.spawn(world.way.join());
  world.simulation.run();
  CHECK(world.events() == std::vector<std::string>{"of no run", "of a run"});
}

}  // namespace
}  // namespace fl::test
