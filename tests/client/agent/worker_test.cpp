// SPDX-License-Identifier: Apache-2.0
#include "client/agent/job_queue.hpp"

#include "shared/base/limits.hpp"
#include "tests/support/print_result.hpp"
#include "tests/wire/simulation.hpp"

#include <doctest/doctest.h>

#include <stdexcept>
#include <vector>

namespace fl::test {
namespace {

using namespace std::chrono_literals;
using client::AgentEvent;
using client::Arrival;
using client::JobDone;

/// A queue whose worker begins each piece of work a second after it was given.
struct QueueWorld {
  Simulation simulation;
  Offload worker{[]() -> Duration { return 1s; }};
  TaskGroup group{simulation.io.get_executor()};
  client::AgentEvents events{simulation.io.get_executor(), client::agent_events_max};
  client::JobQueue jobs{worker, group, events};

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

/// Ends the job. The queue must be busy even then.
Awaitable<void> end_busy(client::JobQueue& jobs, bool& has_ended) {
  has_ended = co_await jobs.end();
  CHECK(jobs.is_busy());
}

}  // namespace

TEST_CASE("the end of a job is an event with its task, and the queue is busy until it is taken") {
  QueueWorld world;
  CHECK(!world.jobs.is_busy());
  CHECK(world.jobs.task() == 0);
  world.jobs.start(7, [](std::stop_token) {
    JobDone done;
    done.evaluation.emplace().set_version(3);
    return done;
  });
  CHECK(world.jobs.is_busy());
  CHECK(world.jobs.task() == 7);
  CHECK(world.events.empty());
  world.simulation.run();
  CHECK(world.events.size() == 1);
  CHECK(world.jobs.is_busy());

  const JobDone done = world.next_done();
  CHECK(done.task == 7);
  CHECK(done.result);
  REQUIRE(done.evaluation);
  CHECK(done.evaluation->version() == 3);
  world.jobs.finished();
  CHECK(!world.jobs.is_busy());
  CHECK(world.jobs.task() == 0);
}

TEST_CASE("one job after the other can run, each with its own task") {
  QueueWorld world;
  for (const std::int64_t task : {4, 0, 5}) {
    world.jobs.start(task, do_nothing);
    CHECK(world.jobs.is_busy());
    CHECK(world.jobs.task() == task);
    CHECK(world.next_done().task == task);
    world.jobs.finished();
  }
}

TEST_CASE("an error of a job arrives in its event") {
  QueueWorld world;
  world.jobs.start(7, [](std::stop_token) {
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
  QueueWorld world;
  world.jobs.start(7, [](std::stop_token) -> JobDone { throw std::runtime_error("no memory"); });
  const JobDone done = world.next_done();
  CHECK(done.task == 7);
  REQUIRE(!done.result);
  CHECK(done.result.error().code() == Errc::internal);
  CHECK(done.result.error().message() == "unexpected error: no memory");
}

TEST_CASE("the end of a job waits for room in the queue of events and is not lost") {
  QueueWorld world;
  for (std::size_t i = 0; i < client::agent_events_max; ++i) world.push_arrival();
  world.jobs.start(7, do_nothing);
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
  QueueWorld world;
  world.jobs.start(1, look_at_stop);
  world.jobs.request_stop();
  const JobDone stopped = world.next_done();
  REQUIRE(!stopped.result);
  CHECK(stopped.result.error().code() == Errc::cancelled);
  world.jobs.finished();
  world.jobs.start(2, look_at_stop);
  CHECK(world.next_done().result);
}

TEST_CASE("ending a job stops it, waits for it and drops the events before it") {
  QueueWorld world;
  bool was_asked = false;
  for (std::size_t i = 0; i < client::agent_events_max; ++i) world.push_arrival();
  world.jobs.start(7, [&was_asked](std::stop_token stop) {
    was_asked = stop.stop_requested();
    return JobDone();
  });
  CHECK(world.simulation.result_of(world.jobs.end()));
  CHECK(was_asked);
  CHECK(!world.jobs.is_busy());
  CHECK(world.events.empty());
  CHECK(world.simulation.time.elapsed() == 1s);
}

TEST_CASE("ending while no job runs drops nothing") {
  QueueWorld world;
  world.push_arrival();
  CHECK(world.simulation.result_of(world.jobs.end()));
  CHECK(world.events.size() == 1);
}

TEST_CASE("ending a job fails when the queue of events is closed, and the job frees the queue") {
  QueueWorld world;
  world.jobs.start(7, do_nothing);
  world.events.close();
  bool has_ended = true;
  world.simulation.spawn(end_busy(world.jobs, has_ended));
  world.simulation.run();
  CHECK(!has_ended);
  CHECK(!world.jobs.is_busy());
}

TEST_CASE("after the group is joined no job runs, even if nobody took its event") {
  QueueWorld world;
  world.jobs.start(7, do_nothing);
  world.simulation.spawn(world.group.join());
  world.simulation.run();
  CHECK(world.events.size() == 1);
  world.jobs.joined();
  CHECK(!world.jobs.is_busy());
  CHECK(world.jobs.task() == 0);
}

TEST_CASE("a step runs on the worker and gives its result") {
  QueueWorld world;
  const auto answer = [] { return 42; };
  CHECK(world.simulation.result_of(world.jobs.step(answer)) == 42);
  CHECK(world.simulation.time.elapsed() == 1s);
  CHECK(!world.jobs.is_busy());
}

TEST_CASE("a full disk pauses the queue for a while") {
  QueueWorld world;
  CHECK(!world.jobs.is_paused());
  world.jobs.pause_for_disk();
  CHECK(world.jobs.is_paused());
  CHECK(world.jobs.paused_until() == Clock::now() + limits::full_disk_pause);
  world.simulation.spawn(sleep_for(limits::full_disk_pause - 1ms));
  world.simulation.run();
  CHECK(world.jobs.is_paused());
  world.simulation.spawn(sleep_for(1ms));
  world.simulation.run();
  CHECK(!world.jobs.is_paused());
}

}  // namespace fl::test
