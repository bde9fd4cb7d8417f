// SPDX-License-Identifier: Apache-2.0
// What a backup leaves out of its copy of the history, and which runs can be removed.
#include "tests/server/history/store_world.hpp"

namespace fl::test {
namespace {

/// A run with `rounds` closed rounds, in this state.
RunId add_run(Store& store, const std::string& key, Round rounds, RunState state) {
  const RunId run = store.create_run(some_run(key)).value().id;
  store.set_initial_model(run, some_checkpoint(0)).value();
  for (Round number = 1; number <= rounds; ++number) {
    auto tasks =
        store.open_round(run, some_round(number), {some_task("a"), some_task("b")}).value();
    store.decide_tasks({accepted(tasks[0])}).value();
    store.commit_round(some_commit(run, number)).value();
    store.add_evaluation(some_evaluation(run, number, "a", 10, 0.5, 0.5)).value();
    store.add_event(run, EventLevel::info, "something").value();
  }
  store.set_run_state(run, state).value();
  return run;
}

TEST_CASE("a run that is over can be removed with all its rows, and others keep theirs") {
  StoreWorld world;
  Store& store = *world.store;
  const RunId first = add_run(store, "0123456789abcdef", 3, RunState::finished);
  const RunId second = add_run(store, "fedcba9876543210", 2, RunState::running);
  store.add_audit(AuditKind::refusal, "x", "a row").value();
  CHECK(store.remove_run(second).error().code() == Errc::conflict);
  CHECK(store.remove_run(99).error().code() == Errc::not_found);
  const auto ended = store.ended_runs().value();
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].id == first);
  CHECK(ended[0].tasks == 6);
  CHECK(ended[0].ended_at == doctest::Approx(2007.5 + 30));

  REQUIRE(store.remove_run(first));
  CHECK_FALSE(store.find_run(first).value());
  CHECK(store.summary(first).value().empty());
  CHECK(store.metrics(first).value().empty());
  CHECK(store.checkpoints(first).value().empty());
  CHECK(store.summary(second).value().size() == 2);
  CHECK(store.metrics(second).value().size() == 4);
  CHECK(store.audit().value().size() == 1);
  REQUIRE(store.give_back_space());
  // Numbers are not given to other runs.
  CHECK(add_run(store, "0000456789abcdef", 0, RunState::finished) == second + 1);
}

TEST_CASE("a copy whose models are missing forgets them, and tasks that need them") {
  StoreWorld world;
  Store& store = *world.store;
  const auto tasks = world.start_round({"a", "b"});
  store.decide_tasks({accepted(tasks[0])}).value();
  REQUIRE(store.forget_checkpoint(world.run, 0));
  CHECK(store.checkpoints(world.run).value().empty());
  CHECK(store.find_task(world.run, tasks[1].id).value()->state == TaskState::late);
  CHECK(store.find_task(world.run, tasks[0].id).value()->state == TaskState::accepted);
}

TEST_CASE("a copy whose update is missing forgets it, only while its round is open") {
  StoreWorld world;
  Store& store = *world.store;
  const auto tasks = world.start_round({"a", "b"});
  CHECK(store.forget_update(tasks[0].id, "gone").error().code() == Errc::not_found);
  store.decide_tasks({accepted(tasks[0]), accepted(tasks[1])}).value();
  REQUIRE(store.forget_update(tasks[0].id, "gone"));
  const auto task = store.find_task(world.run, tasks[0].id).value();
  CHECK(task->state == TaskState::lost);
  CHECK(task->reason == "gone");
  store.commit_round(some_commit(world.run, 1)).value();
  CHECK(store.forget_update(tasks[1].id, "gone").error().code() == Errc::not_found);
}

}  // namespace
}  // namespace fl::test
