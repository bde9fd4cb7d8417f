// SPDX-License-Identifier: Apache-2.0
// The tasks of a round: what it still needs, and which tasks move into the next round.
#include "server/round/tasks.hpp"
#include "shared/base/limits.hpp"
#include "tests/server/round/fake_peer.hpp"
#include "tests/wire/simulation.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <list>
#include <map>
#include <string>
#include <string_view>

namespace fl::test {

using namespace fl::server;
namespace {

using namespace std::chrono_literals;

RunRecord toy_run() {
  RunRecord run;
  run.id = 1;
  run.model = "toy";
  return run;
}

/// A run of two tensors, with an open round 1 whose target is `target`.
struct RoundWorld {
  explicit RoundWorld(const char* mode = "sync", std::uint32_t target = 3)
      : plan(settings(mode), toy_run(), Layout::make({{"w", {2, 2}}, {"b", {3}}}).value()),
        roster(plan.mode.ahead),
        tasks(plan, roster) {
    OpenRound round;
    round.record.round = 1;
    round.record.target = target;
    round.opened_at = Clock::now();
    if (!plan.mode.is_async) round.deadline = plan.deadline_after(Clock::now());
    round.is_durable = true;
    tasks.open(std::move(round));
  }

  static RunSettings settings(const char* mode) {
    RunSettings made;
    made.mode = mode;
    made.min_clients = 2;
    made.deadline_s = 60;
    return made;
  }

  Task& add(const std::string& client, TaskState state = TaskState::offered,
            std::uint64_t examples = 100) {
    roster.enter(trainer(client));
    Task task;
    task.record.id = TaskId{static_cast<std::int64_t>(tasks.round().tasks.size()) + 1};
    task.record.client = client;
    task.record.state = state;
    task.record.examples = examples;
    task.record.steps = 5;
    task.record.loss = static_cast<double>(examples);
    task.offered_at = Clock::now();
    return tasks.round().put(std::move(task));
  }
  void set(const std::string& client, TaskState state) {
    Task& task = *tasks.task_of(client);
    TaskRecord record = task.record;
    record.state = state;
    tasks.round().update_task(task, record);
  }
  /// Asks a client again whose task has failed.
  void ask_again(const std::string& client) {
    Task task = *tasks.task_of(client);
    task.record.state = TaskState::offered;
    tasks.round().put(std::move(task));
  }

  Simulation simulation;
  RunPlan plan;
  Roster roster;
  Tasks tasks;
};

TEST_CASE("a round counts its tasks by state") {
  RoundWorld world;
  for (const char* const name : {"a", "b", "c"}) world.add(name);
  CHECK(world.tasks.round().count(TaskState::offered) == 3);
  world.set("a", TaskState::accepted);
  world.set("b", TaskState::lost);
  CHECK(world.tasks.round().count(TaskState::offered) == 1);
  CHECK(world.tasks.round().count(TaskState::accepted) == 1);
  CHECK(world.tasks.round().count(TaskState::lost) == 1);
  world.roster.leave(world.roster.find("b"), true);
  world.add("b");  // Asked again: the task that was lost is replaced.
  CHECK(world.tasks.round().count(TaskState::lost) == 0);
  CHECK(world.tasks.round().count(TaskState::offered) == 2);
}

TEST_CASE(
    "a synchronous round has enough with its target, or with its quorum if no update is to come") {
  RoundWorld world;
  for (const char* const name : {"a", "b", "c"}) world.add(name);
  const TimePoint now = Clock::now();
  CHECK_FALSE(world.tasks.has_enough(now));
  world.set("a", TaskState::accepted);
  world.set("b", TaskState::accepted);
  CHECK_FALSE(world.tasks.has_enough(now));  // c may still come.
  CHECK(world.tasks.has_enough(now + 60s));  // Not after the deadline.
  world.set("c", TaskState::lost);
  CHECK(world.tasks.has_enough(now));
  CHECK(world.tasks.to_ask(now) == 1);         // Another is asked, if there is one,
  CHECK_FALSE(world.tasks.may_be_asked("c"));  // but not c, without which it can close.
  world.tasks.task_of("c")->ask_again_at = now;
  CHECK_FALSE(world.tasks.may_be_asked("c"));
  CHECK(world.tasks.may_be_asked("d"));
}

TEST_CASE("a round below its quorum never has enough, even after the deadline") {
  RoundWorld world;
  world.add("a", TaskState::accepted);
  world.add("b", TaskState::lost);
  CHECK(world.tasks.quorum() == 2);
  CHECK_FALSE(world.tasks.has_enough(Clock::now() + 60s));
  CHECK(world.tasks.to_ask(Clock::now()) == 2);
}

TEST_CASE("a buffer asks idle clients until it is full, and then takes no more updates") {
  RoundWorld world("async:buffer=2", 2);
  world.add("a");
  world.add("b");
  world.roster.enter(trainer("c"));
  CHECK(world.tasks.to_ask(Clock::now()) == 1);
  CHECK(world.tasks.takes_updates());
  world.set("a", TaskState::accepted);
  CHECK(world.tasks.takes_updates());
  world.tasks.task_of("b")->is_deciding = true;  // The second is being added.
  CHECK_FALSE(world.tasks.takes_updates());
  world.tasks.task_of("b")->is_deciding = false;
  world.set("b", TaskState::accepted);
  CHECK(world.tasks.has_enough(Clock::now()));
  CHECK(world.tasks.to_ask(Clock::now()) == 0);
}

TEST_CASE("a client that failed is asked again after a pause that doubles") {
  RoundWorld world;
  Task& task = world.add("a", TaskState::lost);
  CHECK(world.tasks.may_be_asked("somebody else"));
  Duration last{};
  for (int i = 0; i < 20; ++i) {
    task.note_failure();
    CHECK_FALSE(world.tasks.may_be_asked("a"));
    const Duration pause = task.ask_again_at - Clock::now();
    CHECK(pause >= last);
    CHECK(pause <= limits::ask_again_max);
    last = pause;
  }
  CHECK(last == limits::ask_again_max);
  CHECK(world.tasks.next_event(Clock::now(), true) == world.tasks.round().deadline);
  task.ask_again_at = Clock::now() + 5s;
  CHECK(world.tasks.next_event(Clock::now(), true) == Clock::now() + 5s);
  CHECK(world.tasks.next_event(Clock::now(), false) == world.tasks.round().deadline);
  task.ask_again_at = Clock::now();
  CHECK(world.tasks.may_be_asked("a"));
  world.ask_again("a");
  CHECK_FALSE(world.tasks.may_be_asked("a"));
}

TEST_CASE("a silent client that missed a deadline does not hold the place of one that failed") {
  RoundWorld world;
  world.add("here", TaskState::accepted);
  Task& failed = world.add("failed", TaskState::lost);
  failed.ask_again_at = Clock::now();
  Task& silent = world.add("silent");
  CHECK_FALSE(world.tasks.may_be_asked("failed"));  // The quorum of 2 may still come.
  silent.has_missed = true;
  CHECK(world.tasks.may_be_asked("failed"));
  CHECK_FALSE(world.tasks.may_be_asked("silent"));
  // Once it is asked, nobody else need be.
  world.ask_again("failed");
  Task& other = world.add("other", TaskState::lost);
  other.ask_again_at = Clock::now();
  CHECK_FALSE(world.tasks.may_be_asked("other"));
}

TEST_CASE("only in an asynchronous run does a task have its own deadline") {
  RoundWorld world("async:buffer=9", 9);
  Task& early = world.add("early");
  Task& late = world.add("late");
  early.offered_at -= 30s;
  CHECK(world.tasks.due(late) - world.tasks.due(early) == 30s);
  CHECK(world.tasks.overdue(Clock::now() + 29s).empty());
  CHECK(world.tasks.overdue(Clock::now() + 30s) == std::vector<Task*>{&early});
  early.has_arrived = true;
  CHECK(world.tasks.overdue(Clock::now() + 30s).empty());
  CHECK(world.tasks.next_event(Clock::now(), false) == world.tasks.due(late));
}

TEST_CASE("open tasks that are not too old move into the next round") {
  RoundWorld world("sync:late=1");
  world.add("done", TaskState::accepted);
  world.add("old").record.base_version = 4;
  world.add("new").record.base_version = 5;
  const auto peer = std::static_pointer_cast<FakePeer>(world.roster.find("new"));
  peer->up = 1000;
  world.tasks.round().begin_closing();
  world.tasks.close(5);
  CHECK_FALSE(world.tasks.has_round());
  REQUIRE(world.tasks.carried().size() == 1);
  const Task& carried = world.tasks.carried().at("new");
  // The client's earlier traffic is counted in the recorded round.
  CHECK(carried.before.up == 1000);
  CHECK(world.tasks.find("new", carried.record.id) == &carried);
  CHECK(world.tasks.task_of("old") == nullptr);
  OpenRound next;
  next.record.round = 2;
  world.tasks.open(std::move(next));
  CHECK(world.tasks.carried().empty());
  REQUIRE(world.tasks.task_of("new") != nullptr);
  CHECK(world.tasks.task_of("new")->record.round == 2);
  CHECK(world.tasks.round().count(TaskState::offered) == 1);
}

TEST_CASE("the weights, loss and deltas of a round come from its accepted tasks") {
  RoundWorld world;
  world.add("a", TaskState::accepted, 100);
  world.add("b", TaskState::accepted, 300).record.codec = "delta+topk:0.1";
  world.add("c", TaskState::refused, 5000).record.codec = "delta+topk:0.1";
  CHECK(world.tasks.accepted_weight() == 400);
  CHECK(world.tasks.training_loss() == doctest::Approx((100.0 * 100 + 300.0 * 300) / 400));
  world.tasks.task_of("a")->record.predictions = 900;
  CHECK(world.tasks.training_loss() == (100.0 * 900 + 300.0 * 300) / 1200);
  CHECK(world.tasks.accepted_weight() == 400);
  CHECK(world.tasks.accepted_deltas() == std::map<std::string, TaskId>{{"b", TaskId{2}}});
  world.tasks.round().record.population = 1000;
  PastRounds past;
  const RoundFacts facts = world.tasks.facts(past);
  CHECK(facts.round == 1);
  CHECK(facts.share == doctest::Approx(0.4));
}

TEST_CASE("one client's impossible loss or steps are bounded by the others', and named") {
  RoundWorld world;
  for (const char* const name : {"a", "b", "c", "d", "liar"}) {
    Task& task = world.add(name, TaskState::accepted);
    task.record.loss = 0.5;
    task.record.steps = 10;
  }
  PastRounds past;
  CHECK(world.tasks.training_loss() == 0.5);
  CHECK(world.tasks.wild_losses().empty());
  const double steps = world.tasks.facts(past).effective_steps;
  for (const double lie : {1.7e308, -1.7e308}) {
    world.tasks.task_of("liar")->record.loss = lie;
    CHECK(world.tasks.training_loss() == doctest::Approx((2 + std::copysign(50, lie)) / 5));
    const auto wild = world.tasks.wild_losses();
    REQUIRE(wild.size() == 1);
    CHECK(wild[0].first == "liar");
    CHECK(wild[0].second.find("it counts as " + std::string(lie < 0 ? "-50" : "50")) !=
          std::string::npos);
    CHECK(world.tasks.task_of("liar")->record.loss == lie);
  }
  world.tasks.task_of("liar")->record.steps = ~0ull;
  CHECK(world.tasks.facts(past).effective_steps == doctest::Approx((4 * steps + 100 * steps) / 5));
}

TEST_CASE("a decision on a task is being made while its guard lives") {
  RoundWorld world;
  Task& task = world.add("a");
  CHECK_FALSE(world.tasks.round().is_deciding());
  {
    const DecidingGuard guard(task);
    CHECK(world.tasks.round().is_deciding());
    CHECK_FALSE(task.is_open());
  }
  CHECK(task.is_open());
}

TEST_CASE("updates that wait for others are ready, and the round closes with them") {
  RoundWorld world("sync", 3);
  std::list<DecidingGuard> guards;
  for (const char* const client : {"a", "b", "c"}) {
    Task& task = world.add(client);
    if (client == std::string_view("c")) continue;
    guards.emplace_back(task);
    CHECK_FALSE(world.tasks.round().has_all_norms());
    task.has_norm = true;
    task.waits_for_others = true;
    CHECK(world.tasks.round().has_all_norms());
  }
  CHECK(world.tasks.ready() == 2);
  CHECK_FALSE(world.tasks.has_enough(Clock::now()));  // c may still come.
  Task& last = *world.tasks.task_of("c");
  TaskRecord record = last.record;
  record.state = TaskState::accepted;
  world.tasks.round().update_task(last, record);
  CHECK(world.tasks.has_enough(Clock::now()));
  world.tasks.round().begin_closing();
  world.tasks.round().has_refused_updates = true;
  guards.clear();
  world.tasks.round().reopen();
  CHECK_FALSE(world.tasks.round().is_closing);
  CHECK_FALSE(world.tasks.round().has_refused_updates);
}

TEST_CASE("a frozen round asks nobody else, whoever fails and however late it is") {
  RoundWorld world("sync", 4);
  for (const char* const client : {"a", "b", "c"}) world.add(client);
  const TimePoint now = Clock::now();
  CHECK(world.tasks.to_ask(now) == 1);
  world.tasks.round().is_frozen = true;
  CHECK(world.tasks.to_ask(now) == 0);
  world.set("a", TaskState::accepted);
  world.set("b", TaskState::lost);
  CHECK(world.tasks.to_ask(now) == 0);
  CHECK(world.tasks.to_ask(now + 60s) == 0);
  // It takes the updates of those that were asked, and has enough with its quorum.
  CHECK(world.tasks.takes_updates());
  CHECK_FALSE(world.tasks.has_enough(now));
  world.set("c", TaskState::accepted);
  CHECK(world.tasks.has_enough(now));
}

TEST_CASE("a frozen round without its quorum never has enough") {
  RoundWorld world("sync", 3);
  world.add("a", TaskState::accepted);
  world.add("b", TaskState::lost);
  world.tasks.round().is_frozen = true;
  CHECK_FALSE(world.tasks.has_enough(Clock::now()));
  CHECK_FALSE(world.tasks.has_enough(Clock::now() + 60s));
  CHECK(world.tasks.to_ask(Clock::now() + 60s) == 0);
  world.tasks.round().is_frozen = false;
  CHECK(world.tasks.to_ask(Clock::now() + 60s) == 1);
}

TEST_CASE("a round that is closing asks nobody else, and is reopened if it lacks its quorum then") {
  RoundWorld world("sync", 3);
  world.add("a", TaskState::accepted);
  std::list<DecidingGuard> guards;
  for (const char* const client : {"b", "c"}) {
    Task& task = world.add(client);
    guards.emplace_back(task);
    task.waits_for_others = true;
  }
  const TimePoint now = Clock::now();
  OpenRound& round = world.tasks.round();
  CHECK(world.tasks.has_enough(now));
  round.begin_closing();
  CHECK(round.is_frozen);
  // Both updates that wait are judged too large.
  guards.clear();
  for (const char* const client : {"b", "c"}) {
    world.tasks.task_of(client)->waits_for_others = false;
    world.set(client, TaskState::refused);
  }
  round.has_refused_updates = true;
  CHECK(world.tasks.to_ask(now) == 0);
  CHECK(world.tasks.to_ask(now + 60s) == 0);
  CHECK_FALSE(world.tasks.may_end(now));
  round.reopen();
  CHECK_FALSE(round.is_frozen);
  CHECK(world.tasks.to_ask(now) == 2);
  CHECK(world.tasks.to_ask(now + 60s) == 1);  // As many as the quorum lacks.
}

TEST_CASE("if many clients are missing, ten of them are named") {
  RoundWorld world("sync", 30);
  for (int i = 10; i < 22; ++i) world.add("c" + std::to_string(i));
  CHECK(world.tasks.names_missing() ==
        "c10, c11, c12, c13, c14, c15, c16, c17, c18, c19 and 2 more");
}

}  // namespace
}  // namespace fl::test
