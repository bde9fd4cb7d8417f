// SPDX-License-Identifier: Apache-2.0
// A backup leaves things out of its copy of the history; runs that are over can be removed.
#include "tests/server/history/store_world.hpp"

namespace fl::test {
namespace {

/// A run with `rounds` closed rounds, in this state.
RunId add_run(Store& store, const std::string& key, Round rounds, RunState state) {
  const RunId run = store.runs().create(some_run(key)).value().id;
  store.rounds().set_initial_model(run, some_checkpoint(0)).value();
  for (Round number = 1; number <= rounds; ++number) {
    auto tasks =
        store.rounds().open(run, some_round(number), {some_task("a"), some_task("b")}).value();
    store.rounds().decide({accepted(tasks[0])}).value();
    store.rounds().commit(some_commit(run, number)).value();
    store.measurements().add(some_evaluation(run, number, "a", 10, 0.5, 0.5)).value();
    store.events().add(run, EventLevel::info, "something").value();
  }
  store.runs().set_state(run, state).value();
  return run;
}

TEST_CASE("a run that is over can be removed with all its rows, and others keep theirs") {
  StoreWorld world;
  Store& store = *world.store;
  const RunId first = add_run(store, "0123456789abcdef", 3, RunState::finished);
  const RunId second = add_run(store, "fedcba9876543210", 2, RunState::running);
  store.audit().add(AuditKind::refusal, "x", "a row").value();
  CHECK(store.archive().remove_run(second).error().code() == Errc::conflict);
  CHECK(store.archive().remove_run(99).error().code() == Errc::not_found);
  const auto ended = store.archive().ended_runs().value();
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].id == first);
  CHECK(ended[0].tasks == 6);
  CHECK(ended[0].ended_at == doctest::Approx(2007.5 + 30));

  REQUIRE(store.archive().remove_run(first));
  CHECK_FALSE(store.runs().find(first).value());
  CHECK(store.summaries().rounds(first).value().empty());
  CHECK(store.summaries().metrics(first).value().empty());
  CHECK(store.rounds().checkpoints(first).value().empty());
  CHECK(store.summaries().rounds(second).value().size() == 2);
  CHECK(store.summaries().metrics(second).value().size() == 4);
  CHECK(store.audit().all().value().size() == 1);
  REQUIRE(store.archive().give_back_space());
  // Numbers are not given to other runs.
  CHECK(add_run(store, "0000456789abcdef", 0, RunState::finished) == second + 1);
}

TEST_CASE("a copy whose models are missing forgets them, and tasks that need them") {
  StoreWorld world;
  Store& store = *world.store;
  const auto tasks = world.start_round({"a", "b"});
  store.rounds().decide({accepted(tasks[0])}).value();
  REQUIRE(store.archive().forget_checkpoint(world.run, 0));
  CHECK(store.rounds().checkpoints(world.run).value().empty());
  CHECK(store.rounds().find_task(world.run, tasks[1].id).value()->state == TaskState::late);
  CHECK(store.rounds().find_task(world.run, tasks[0].id).value()->state == TaskState::accepted);
}

TEST_CASE("a copy whose update is missing forgets it, only while its round is open") {
  StoreWorld world;
  Store& store = *world.store;
  const auto tasks = world.start_round({"a", "b"});
  CHECK(store.archive().forget_update(tasks[0].id, "gone").error().code() == Errc::not_found);
  store.rounds().decide({accepted(tasks[0]), accepted(tasks[1])}).value();
  REQUIRE(store.archive().forget_update(tasks[0].id, "gone"));
  const auto task = store.rounds().find_task(world.run, tasks[0].id).value();
  CHECK(task->state == TaskState::lost);
  CHECK(task->reason == "gone");
  store.rounds().commit(some_commit(world.run, 1)).value();
  CHECK(store.archive().forget_update(tasks[1].id, "gone").error().code() == Errc::not_found);
}

}  // namespace
}  // namespace fl::test
