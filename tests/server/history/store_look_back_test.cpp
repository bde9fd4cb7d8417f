// SPDX-License-Identifier: Apache-2.0
// A server that starts again, or opens a round, reads the tasks before. Most of it is of
// closed rounds only: what the open round has done so far can still be undone, or counts elsewhere.
#include "tests/server/history/store_world.hpp"

namespace fl::test {
namespace {

using Tasks = std::map<std::string, TaskId>;
using Numbers = std::map<std::string, std::uint64_t>;
using Norms = std::map<std::string, double>;

TaskRecord with_state(TaskRecord task, TaskState state, double norm = 0.5) {
  TaskRecord decided = accepted(std::move(task));
  decided.state = state;
  decided.norm = norm;
  return decided;
}

std::vector<TaskRecord> delta_tasks(std::initializer_list<std::string> clients) {
  std::vector<TaskRecord> tasks;
  for (const auto& client : clients) tasks.push_back(some_task(client));
  for (auto& task : tasks) task.codec = "delta+qsgd:8";
  return tasks;
}

TEST_CASE("newest_deltas() has what clients may refer to: updates that count in a closed round") {
  StoreWorld world;
  world.start_round({});
  const auto first =
      world.store->rounds().add_tasks(world.run, 1, delta_tasks({"a", "b", "c", "d"})).value();
  const auto plain = world.store->rounds().add_tasks(world.run, 1, {some_task("e")}).value();
  REQUIRE(
      world.store->rounds().decide({accepted(first[0]), accepted(first[1]),
                                    with_state(first[2], TaskState::refused), accepted(plain[0])}));
  CHECK(world.store->rounds().newest_deltas(world.run).value().empty());  // The round is open.
  REQUIRE(world.store->rounds().commit(some_commit(world.run, 1)));
  CHECK(world.store->rounds().newest_deltas(world.run).value() ==
        Tasks{{"a", first[0].id}, {"b", first[1].id}});

  world.open(2, {});
  const auto second =
      world.store->rounds().add_tasks(world.run, 2, delta_tasks({"a", "b"})).value();
  REQUIRE(world.store->rounds().decide(
      {accepted(second[0]), with_state(second[1], TaskState::refused)}));
  // The open round may lose a's new update again: until it is closed the old one counts.
  CHECK(world.store->rounds().newest_deltas(world.run).value() ==
        Tasks{{"a", first[0].id}, {"b", first[1].id}});
  REQUIRE(world.store->rounds().commit(some_commit(world.run, 2)));
  CHECK(world.store->rounds().newest_deltas(world.run).value() ==
        Tasks{{"a", second[0].id}, {"b", first[1].id}});
  CHECK(world.store->rounds().newest_deltas(world.run + 1).value().empty());
}

TEST_CASE("before() has norms of closed rounds and of refused updates, and the population") {
  StoreWorld world;
  world.run = world.store->runs().create(some_run()).value().id;
  world.store->rounds().set_initial_model(world.run, some_checkpoint(0)).value();
  RoundRecord round = some_round(1);
  round.population = 700;
  const auto first =
      world.store->rounds()
          .open(world.run, round, {some_task("a", 10), some_task("b", 20), some_task("c", 30)})
          .value();
  REQUIRE(world.store->rounds().decide({with_state(first[0], TaskState::accepted, 1),
                                        with_state(first[1], TaskState::refused, 2),
                                        with_state(first[2], TaskState::lost, 0)}));
  auto before = world.store->rounds().before(world.run).value();
  CHECK(before.population == 0);
  CHECK(before.norms == Norms{{"b", 2}});  // A refused one is judged, whatever the round becomes.
  CHECK(before.examples == Numbers{{"a", 10}, {"b", 20}, {"c", 30}});
  REQUIRE(world.store->rounds().commit(some_commit(world.run, 1)));

  round = some_round(2);
  round.population = 800;
  const auto second = world.store->rounds()
                          .open(world.run, round, {some_task("a", 11), some_task("b", 21)})
                          .value();
  REQUIRE(world.store->rounds().decide({with_state(second[0], TaskState::accepted, 3)}));
  before = world.store->rounds().before(world.run).value();
  CHECK(before.population == 700);
  CHECK(before.norms == Norms{{"a", 1}, {"b", 2}});
  CHECK(before.examples == Numbers{{"a", 11}, {"b", 21}, {"c", 30}});
  REQUIRE(world.store->rounds().commit(some_commit(world.run, 2)));
  before = world.store->rounds().before(world.run).value();
  CHECK(before.population == 800);
  CHECK(before.norms == Norms{{"a", 3}, {"b", 2}});
}

TEST_CASE("accepted_counts() counts what the open round has accepted, too") {
  StoreWorld world;
  const auto first = world.start_round({"a", "b", "c"});
  REQUIRE(world.store->rounds().decide(
      {accepted(first[0]), accepted(first[1]), with_state(first[2], TaskState::refused)}));
  REQUIRE(world.store->rounds().commit(some_commit(world.run, 1)));
  const auto second = world.open(2, {"a", "b"});
  REQUIRE(world.store->rounds().decide({accepted(second[0])}));
  CHECK(world.store->rounds().accepted_counts(world.run).value() == Numbers{{"a", 2}, {"b", 1}});
  CHECK(world.store->rounds().accepted_counts(world.run + 1).value().empty());
}

TEST_CASE("last_dropped() has what the newest commit with any has dropped") {
  StoreWorld world;
  world.start_round({});
  CHECK(world.store->rounds().last_dropped(world.run).value().empty());
  for (Round round = 1; round <= 4; ++round) {
    if (round > 1) world.open(round, {});
    RoundCommit commit = some_commit(world.run, round);
    if (round == 2) commit.dropped_versions = {0};
    if (round == 3) commit.dropped_versions = {1, 2};
    REQUIRE(world.store->rounds().commit(commit));
  }
  const auto dropped = world.store->rounds().last_dropped(world.run).value();
  REQUIRE(dropped.size() == 2);
  CHECK(dropped[0].version == 1);
  CHECK(dropped[1].version == 2);
  const auto kept = world.store->rounds().checkpoints(world.run).value();
  REQUIRE(kept.size() == 2);
  CHECK(kept[0].version == 3);
  CHECK(kept[1].version == 4);
}

TEST_CASE("misses() counts the tasks since the last one that counted") {
  StoreWorld world;
  constexpr double deadline = 7;  // some_commit() closes a round 7.5 s after its start.
  const auto lost = [](TaskRecord task, double seconds) {
    task = with_state(std::move(task), TaskState::lost);
    task.seconds = seconds;
    return task;
  };
  auto tasks = world.start_round({"good", "late", "lost", "refused", "recovers"});
  REQUIRE(
      world.store->rounds().decide({accepted(tasks[0]), lost(tasks[2], 3),
                                    with_state(tasks[3], TaskState::refused), lost(tasks[4], 1)}));
  REQUIRE(world.store->rounds().commit(some_commit(world.run, 1)));
  tasks = world.open(2, {"good", "late", "lost", "refused", "recovers"});
  REQUIRE(world.store->rounds().decide(
      {lost(tasks[0], 2), lost(tasks[2], 4), accepted(tasks[3]), accepted(tasks[4])}));
  REQUIRE(world.store->rounds().commit(some_commit(world.run, 2)));
  const double now = some_commit(world.run, 2).ended_at + 100;

  auto misses = world.store->rounds().misses(world.run, deadline, now).value();
  REQUIRE(misses.size() == 3);
  CHECK(misses.at("good").in_a_row == 1);
  CHECK(misses.at("good").lost_seconds == 2);
  CHECK(misses.at("late").in_a_row == 2);
  CHECK(misses.at("late").lost_seconds == 7.5);
  CHECK(misses.at("late").seconds_since == 100);
  CHECK(misses.at("lost").in_a_row == 2);
  CHECK(misses.at("lost").lost_seconds == 4);
  // These rounds were closed before such a deadline: "late" was not needed, or may be late.
  CHECK(world.store->rounds().misses(world.run, 8, now).value().count("late") == 0);
  CHECK(world.store->rounds().misses(world.run, 0, now).value().count("late") == 0);

  tasks = world.open(3, {"good", "late", "lost"});
  REQUIRE(world.store->rounds().decide({accepted(tasks[0]), lost(tasks[2], 5)}));
  misses = world.store->rounds().misses(world.run, deadline, now + 50).value();
  REQUIRE(misses.size() == 2);
  CHECK(misses.at("late").in_a_row == 2);  // The task of the open round is not decided.
  CHECK(misses.at("late").seconds_since == 150);
  CHECK(misses.at("lost").in_a_row == 3);
  CHECK(misses.at("lost").lost_seconds == 5);
  CHECK(misses.at("lost").seconds_since == 0);
  CHECK(world.store->rounds().misses(world.run + 1, deadline, now).value().empty());
}

TEST_CASE("misses() counts nothing from before a client was pardoned") {
  StoreWorld world;
  REQUIRE(world.store->members().touch("a", false));
  REQUIRE(world.store->members().touch("b", false));
  const auto miss = [&](Round round) {
    const auto tasks = round == 1 ? world.start_round({"a", "b"}) : world.open(round, {"a", "b"});
    REQUIRE(world.store->rounds().decide(
        {with_state(tasks[0], TaskState::lost), with_state(tasks[1], TaskState::lost)}));
    REQUIRE(world.store->rounds().commit(some_commit(world.run, round)));
  };
  const auto in_a_row = [&](const std::string& client) {
    const auto misses = world.store->rounds().misses(world.run, 7, 0).value();
    return misses.contains(client) ? misses.at(client).in_a_row : 0;
  };
  miss(1);
  miss(2);
  REQUIRE(world.store->members().pardon("a"));
  CHECK(world.store->members().find("a").value()->pardoned_at > 0);
  CHECK(world.store->members().find("b").value()->pardoned_at == 0);
  CHECK(in_a_row("a") == 0);
  CHECK(in_a_row("b") == 2);
  miss(3);
  CHECK(in_a_row("a") == 1);
  CHECK(in_a_row("b") == 3);
  CHECK(code_of(world.store->members().pardon("nobody")) == Errc::not_found);
  REQUIRE(world.store->members().revoke("b", "root"));
  CHECK(code_of(world.store->members().pardon("b")) == Errc::conflict);
}

TEST_CASE("closed() has a recorded round with its tasks, and no open one") {
  StoreWorld world;
  const auto tasks = world.start_round({"a", "b"});
  CHECK(code_of(world.store->rounds().closed(world.run, 1)) == Errc::conflict);
  REQUIRE(world.store->rounds().decide({accepted(tasks[0])}));
  REQUIRE(world.store->rounds().commit(some_commit(world.run, 1)));
  world.open(2, {"a"});
  const auto closed = world.store->rounds().closed(world.run, 1).value();
  CHECK(closed.round.round == 1);
  CHECK(closed.round.base_version == 0);
  CHECK(closed.round.started_at == some_round(1).started_at);
  REQUIRE(closed.tasks.size() == 2);
  CHECK(closed.tasks[0].state == TaskState::accepted);
  CHECK(closed.tasks[0].update_bytes == accepted(tasks[0]).update_bytes);
  CHECK(closed.tasks[1].state == TaskState::late);
  CHECK(code_of(world.store->rounds().closed(world.run, 2)) == Errc::conflict);
  CHECK(code_of(world.store->rounds().closed(world.run, 3)) == Errc::not_found);
  CHECK(code_of(world.store->rounds().closed(world.run + 1, 1)) == Errc::not_found);
}

}  // namespace
}  // namespace fl::test
