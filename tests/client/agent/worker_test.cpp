// SPDX-License-Identifier: Apache-2.0
#include "client/agent/worker.hpp"

#include "shared/base/limits.hpp"
#include "tests/support/print_result.hpp"
#include "tests/wire/simulation.hpp"

#include <doctest/doctest.h>

#include <stdexcept>
#include <vector>

namespace fl::test {

using namespace fl::client;
namespace {

using namespace std::chrono_literals;
using client::AgentEvent;
using client::Arrival;
using client::JobDone;

/// A worker that begins each piece of work a second after it was given.
struct WorkerWorld {
  Simulation simulation;
  Offload offload{[]() -> Duration { return 1s; }};
  TaskGroup group{simulation.io.get_executor()};
  client::AgentEvents events{simulation.io.get_executor(), client::agent_events_max};
  client::Worker worker{offload, group, events};

  void push_arrival() {
    Arrival arrival{1, Error(Errc::unavailable, "the connection broke")};
    REQUIRE(events.push(AgentEvent(std::move(arrival))));
  }
  /// The next event, which must be the end of a job.
  JobDone next_done() {
    auto event = simulation.result_of(events.pop());
    REQUIRE(event);
    REQUIRE(std::holds_alternative<JobDone>(*event));
    return std::get<JobDone>(std::move(*event));
  }
};

JobDone do_nothing(std::stop_token) { return {}; }

/// A job that says in its result whether it was asked to stop.
JobDone look_at_stop(std::stop_token stop) {
  JobDone done;
  if (stop.stop_requested()) done.result = Error(Errc::cancelled, "stopped");
  return done;
}

/// Ends the job. The worker must be busy even then.
Awaitable<void> end_busy(client::Worker& worker, bool& has_ended) {
  has_ended = co_await worker.end();
  CHECK(worker.is_busy());
}

}  // namespace

TEST_CASE("the end of a job is an event with its task, and the worker is busy until it is taken") {
  WorkerWorld world;
  CHECK(!world.worker.is_busy());
  CHECK(world.worker.task() == 0);
  world.worker.start(7, [](std::stop_token) {
    JobDone done;
    done.evaluation.emplace().set_version(3);
    return done;
  });
  CHECK(world.worker.is_busy());
  CHECK(world.worker.task() == 7);
  CHECK(world.events.empty());
  world.simulation.run();
  CHECK(world.events.size() == 1);
  CHECK(world.worker.is_busy());

  const JobDone done = world.next_done();
  CHECK(done.task == 7);
  CHECK(done.result);
  REQUIRE(done.evaluation);
  CHECK(done.evaluation->version() == 3);
  world.worker.finished();
  CHECK(!world.worker.is_busy());
  CHECK(world.worker.task() == 0);
}

TEST_CASE("one job after the other can run, each with its own task") {
  WorkerWorld world;
  for (const std::int64_t task : {4, 0, 5}) {
    world.worker.start(task, do_nothing);
    CHECK(world.worker.is_busy());
    CHECK(world.worker.task() == task);
    CHECK(world.next_done().task == task);
    world.worker.finished();
  }
}

TEST_CASE("an error of a job arrives in its event") {
  WorkerWorld world;
  world.worker.start(7, [](std::stop_token) {
    JobDone done;
    done.result = Error(Errc::no_space, "the disk is full");
    return done;
  });
  const JobDone done = world.next_done();
  REQUIRE(!done.result);
  CHECK(done.result.error().code() == Errc::no_space);
  CHECK(done.result.error().message() == "the disk is full");
}

TEST_CASE("an exception of a job becomes an internal error with its task") {
  WorkerWorld world;
  world.worker.start(7, [](std::stop_token) -> JobDone { throw std::runtime_error("no memory"); });
  const JobDone done = world.next_done();
  CHECK(done.task == 7);
  REQUIRE(!done.result);
  CHECK(done.result.error().code() == Errc::internal);
  CHECK(done.result.error().message() == "unexpected error: no memory");
}

TEST_CASE("the end of a job waits for room in the queue of events and is not lost") {
  WorkerWorld world;
  for (std::size_t i = 0; i < client::agent_events_max; ++i) world.push_arrival();
  world.worker.start(7, do_nothing);
  world.simulation.run();
  CHECK(world.events.size() == client::agent_events_max);
  for (std::size_t i = 0; i < client::agent_events_max; ++i) {
    const auto event = world.simulation.result_of(world.events.pop());
    REQUIRE(event);
    CHECK(std::holds_alternative<Arrival>(*event));
  }
  CHECK(world.next_done().task == 7);
}

TEST_CASE("a job is asked to stop, and the next one is not") {
  WorkerWorld world;
  world.worker.start(1, look_at_stop);
  world.worker.request_stop();
  const JobDone stopped = world.next_done();
  REQUIRE(!stopped.result);
  CHECK(stopped.result.error().code() == Errc::cancelled);
  world.worker.finished();
  world.worker.start(2, look_at_stop);
  CHECK(world.next_done().result);
}

TEST_CASE("ending a job stops it, waits for it and drops the events before it") {
  WorkerWorld world;
  bool was_asked = false;
  for (std::size_t i = 0; i < client::agent_events_max; ++i) world.push_arrival();
  world.worker.start(7, [&was_asked](std::stop_token stop) {
    was_asked = stop.stop_requested();
    return JobDone();
  });
  CHECK(world.simulation.result_of(world.worker.end()));
  CHECK(was_asked);
  CHECK(!world.worker.is_busy());
  CHECK(world.events.empty());
  CHECK(world.simulation.time.elapsed() == 1s);
}

TEST_CASE("ending while no job runs drops nothing") {
  WorkerWorld world;
  world.push_arrival();
  CHECK(world.simulation.result_of(world.worker.end()));
  CHECK(world.events.size() == 1);
}

TEST_CASE("ending a job fails when the queue of events is closed, and the job frees the worker") {
  WorkerWorld world;
  world.worker.start(7, do_nothing);
  world.events.close();
  bool has_ended = true;
  world.simulation.spawn(end_busy(world.worker, has_ended));
  world.simulation.run();
  CHECK(!has_ended);
  CHECK(!world.worker.is_busy());
}

TEST_CASE("after the group is joined no job runs, even if nobody took its event") {
  WorkerWorld world;
  world.worker.start(7, do_nothing);
  world.simulation.spawn(world.group.join());
  world.simulation.run();
  CHECK(world.events.size() == 1);
  world.worker.joined();
  CHECK(!world.worker.is_busy());
  CHECK(world.worker.task() == 0);
}

TEST_CASE("a step runs on the worker and gives its result") {
  WorkerWorld world;
  const auto answer = [] { return 42; };
  CHECK(world.simulation.result_of(world.worker.step(answer)) == 42);
  CHECK(world.simulation.time.elapsed() == 1s);
  CHECK(!world.worker.is_busy());
}

TEST_CASE("a full disk pauses the worker for a while") {
  WorkerWorld world;
  CHECK(!world.worker.is_paused());
  world.worker.pause_for_disk();
  CHECK(world.worker.is_paused());
  CHECK(world.worker.paused_until() == Clock::now() + limits::full_disk_pause);
  world.simulation.spawn(sleep_for(limits::full_disk_pause - 1ms));
  world.simulation.run();
  CHECK(world.worker.is_paused());
  world.simulation.spawn(sleep_for(1ms));
  world.simulation.run();
  CHECK(!world.worker.is_paused());
}

}  // namespace fl::test
