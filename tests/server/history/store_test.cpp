// SPDX-License-Identifier: Apache-2.0
// Runs, rounds, tasks and checkpoints are read as they were written, and none is decided or closed
// twice.
#include "tests/server/history/store_world.hpp"

#include <limits>

namespace fl::test {
namespace {

void check_same(const TaskRecord& a, const TaskRecord& b) {
  CHECK(a.id == b.id);
  CHECK(a.round == b.round);
  CHECK(a.base_version == b.base_version);
  CHECK(a.client == b.client);
  CHECK(a.state == b.state);
  CHECK(a.examples == b.examples);
  CHECK(a.steps == b.steps);
  CHECK(a.loss == b.loss);
  CHECK(a.predictions == b.predictions);
  CHECK(a.train_seconds == b.train_seconds);
  CHECK(a.norm == b.norm);
  CHECK(a.cosine == b.cosine);
  CHECK(a.update_bytes == b.update_bytes);
  CHECK(a.raw_bytes == b.raw_bytes);
  CHECK(a.encode_seconds == b.encode_seconds);
  CHECK(a.save_seconds == b.save_seconds);
  CHECK(a.residual_seconds == b.residual_seconds);
  CHECK(a.digest_seconds == b.digest_seconds);
  CHECK(a.sync_seconds == b.sync_seconds);
  CHECK(a.decode_seconds == b.decode_seconds);
  CHECK(a.nmse == b.nmse);
  CHECK(a.update_digest == b.update_digest);
  CHECK(a.spool_file == b.spool_file);
  CHECK(a.codec == b.codec);
  CHECK(a.codec_reason == b.codec_reason);
  CHECK(a.ready_seconds == b.ready_seconds);
  CHECK(a.upload_seconds == b.upload_seconds);
  CHECK(a.seconds == b.seconds);
  CHECK(a.reference == b.reference);
  CHECK(a.reason == b.reason);
  CHECK(a.ranks == b.ranks);
  CHECK(a.compute_seconds == b.compute_seconds);
  CHECK(a.exposed_seconds == b.exposed_seconds);
  CHECK(a.fp32_steps == b.fp32_steps);
  CHECK(a.setup == b.setup);
  CHECK(a.hidden_seconds == b.hidden_seconds);
  CHECK(a.coding_seconds == b.coding_seconds);
}

void check_same(const CheckpointRecord& a, const CheckpointRecord& b) {
  CHECK(a.version == b.version);
  CHECK(a.file == b.file);
  CHECK(a.bytes == b.bytes);
  CHECK(a.digest == b.digest);
  CHECK(a.delta_file == b.delta_file);
  CHECK(a.delta_bytes == b.delta_bytes);
}

}  // namespace

TEST_CASE("a run is read as it was created, and latest() is the newest one") {
  StoreWorld world;
  CHECK(!world.store->runs().latest().value());
  world.store->runs().create(some_run("aaaaaaaaaaaaaaaa")).value();
  const RunRecord made = world.store->runs().create(some_run()).value();
  world.reopen();
  const RunRecord run = world.store->runs().latest().value().value();
  CHECK(run.id == made.id);
  CHECK(run.key == "0123456789abcdef");
  CHECK(run.model == "cnn");
  CHECK(run.seed == 0xfedc'ba98'7654'3210);
  CHECK(run.rounds_total == 3);
  CHECK(run.config_json == R"({"codec": "qsgd:8"})");
  CHECK(run.state == RunState::waiting);
  CHECK(run.started_at == 1000.5);
}

TEST_CASE("the open run is the oldest one that is not finished") {
  StoreWorld world;
  CHECK(!world.store->runs().next_open().value());
  const RunId first = world.store->runs().create(some_run("aaaaaaaaaaaaaaaa")).value().id;
  const RunId second = world.store->runs().create(some_run("bbbbbbbbbbbbbbbb")).value().id;
  CHECK(world.store->runs().next_open().value()->id == first);
  REQUIRE(world.store->runs().set_state(first, RunState::running));
  CHECK(world.store->runs().next_open().value()->id == first);
  REQUIRE(world.store->runs().set_state(first, RunState::stopped));
  CHECK(world.store->runs().next_open().value()->id == second);
  REQUIRE(world.store->runs().set_state(second, RunState::finished));
  CHECK(!world.store->runs().next_open().value());
}

TEST_CASE("a run that steps aside comes after the others that wait") {
  StoreWorld world;
  Runs& runs = world.store->runs();
  const auto next = [&] { return runs.next_open().value()->id; };
  const RunId first = runs.create(some_run("aaaaaaaaaaaaaaaa")).value().id;
  CHECK(!runs.step_aside(first).value());  // There is no other.
  const RunId second = runs.create(some_run("bbbbbbbbbbbbbbbb")).value().id;
  const RunId third = runs.create(some_run("cccccccccccccccc")).value().id;
  CHECK(runs.step_aside(first).value());
  CHECK(next() == second);
  CHECK(runs.find(first).value()->aside_at > 0);
  CHECK(runs.step_aside(second).value());
  CHECK(next() == third);
  REQUIRE(runs.set_state(third, RunState::finished));
  CHECK(next() == first);
  REQUIRE(runs.set_state(first, RunState::running));
  CHECK(!runs.step_aside(first).value());  // It has a model.
  const RunId fourth = runs.create(some_run("dddddddddddddddd")).value().id;
  CHECK(next() == first);  // A run that has begun goes on, though it stepped aside before.
  REQUIRE(runs.set_state(first, RunState::finished));
  CHECK(next() == fourth);
}

TEST_CASE("a new run may stop the unfinished ones, and has its own folder") {
  StoreWorld world;
  const RunRecord first = world.store->runs().create(some_run("aaaaaaaaaaaaaaaa")).value();
  CHECK(first.checkpoints.empty());
  RunRecord other = some_run("bbbbbbbbbbbbbbbb");
  other.queued = true;
  const RunRecord second = world.store->runs().create(other).value();
  CHECK(world.store->runs().next_open().value()->id == first.id);
  CHECK(!world.store->runs().next_open().value()->queued);
  CHECK(world.store->runs().open_count().value() == 2);
  REQUIRE(world.store->runs().set_state(first.id, RunState::running));
  CHECK(world.store->runs().shown().value()->id == first.id);
  const RunRecord third =
      world.store->runs().create(some_run("cccccccccccccccc"), Runs::Others::stop).value();
  world.reopen();
  CHECK(third.checkpoints == "run-3");
  CHECK(world.store->runs().open_count().value() == 1);
  CHECK(world.store->runs().next_open().value()->id == third.id);
  CHECK(world.store->runs().next_open().value()->checkpoints == "run-3");
  CHECK(world.store->runs().shown().value()->id == third.id);  // The second run was never shown.
  const auto runs = world.store->runs().all().value();
  REQUIRE(runs.size() == 3);
  CHECK(runs[1].run.state == RunState::stopped);
  CHECK(runs[2].run.key == third.key);
  CHECK(runs[2].rounds_closed == 0);
}

TEST_CASE("a run's key is unique and well formed") {
  StoreWorld world;
  world.store->runs().create(some_run()).value();
  CHECK(code_of(world.store->runs().create(some_run())) == Errc::conflict);
  CHECK(code_of(world.store->runs().create(some_run("short"))) == Errc::invalid_input);
  RunRecord run = some_run("bbbbbbbbbbbbbbbb");
  run.config_json = "{not json";
  CHECK(code_of(world.store->runs().create(run)) == Errc::invalid_input);
}

TEST_CASE("each run state is stored, and unknown runs are not found") {
  StoreWorld world;
  const RunId run = world.store->runs().create(some_run()).value().id;
  for (const auto state :
       {RunState::running, RunState::finished, RunState::stopped, RunState::waiting}) {
    REQUIRE(world.store->runs().set_state(run, state));
    CHECK(world.store->runs().latest().value()->state == state);
  }
  CHECK(code_of(world.store->runs().set_state(run + 1, RunState::running)) == Errc::not_found);
  CHECK(code_of(world.store->runs().change(run + 1, 5, "{}")) == Errc::not_found);
}

TEST_CASE("a finished run can be reopened, but only with more rounds than it has closed") {
  StoreWorld world;
  world.start_round({"a"});
  REQUIRE(world.store->rounds().commit(some_commit(world.run, 1)));
  REQUIRE(world.store->runs().set_state(world.run, RunState::finished));
  REQUIRE(world.store->runs().change(world.run, 1, "{}"));
  CHECK(world.store->runs().latest().value()->state == RunState::finished);
  REQUIRE(world.store->runs().change(world.run, 2, "{}"));
  CHECK(world.store->runs().latest().value()->state == RunState::running);
  CHECK(world.store->runs().latest().value()->rounds_total == 2);
  REQUIRE(world.store->runs().set_state(world.run, RunState::stopped));
  REQUIRE(world.store->runs().change(world.run, 9, "{}"));
  CHECK(world.store->runs().latest().value()->state == RunState::stopped);
}

TEST_CASE("the initial model starts the run and can't be set twice") {
  StoreWorld world;
  const RunId run = world.store->runs().create(some_run()).value().id;
  CHECK(world.store->rounds().checkpoints(run).value().empty());
  REQUIRE(world.store->rounds().set_initial_model(run, some_checkpoint(0)));
  CHECK(code_of(world.store->rounds().set_initial_model(run, some_checkpoint(0))) ==
        Errc::conflict);
  CHECK(code_of(world.store->rounds().set_initial_model(run + 1, some_checkpoint(0))) ==
        Errc::not_found);
  CHECK(world.store->runs().latest().value()->state == RunState::running);
  const auto kept = world.store->rounds().checkpoints(run).value();
  REQUIRE(kept.size() == 1);
  check_same(kept[0], some_checkpoint(0));
}

TEST_CASE("an initial model for a run that doesn't wait leaves no checkpoint behind") {
  StoreWorld world;
  const RunId run = world.store->runs().create(some_run()).value().id;
  REQUIRE(world.store->runs().set_state(run, RunState::stopped));
  CHECK(code_of(world.store->rounds().set_initial_model(run, some_checkpoint(0))) ==
        Errc::conflict);
  CHECK(world.store->rounds().checkpoints(run).value().empty());
}

TEST_CASE("an open round and its tasks come back after a restart") {
  StoreWorld world;
  auto tasks = world.start_round({"a", "b"});
  REQUIRE(tasks.size() == 2);
  CHECK(tasks[0].id != tasks[1].id);
  CHECK(tasks[1].client == "b");
  CHECK(tasks[1].round == 1);
  const TaskRecord decided = accepted(tasks[0]);
  REQUIRE(world.store->rounds().decide({decided}));
  world.reopen();
  const auto open = world.store->rounds().unfinished(world.run).value();
  REQUIRE(open.has_value());
  CHECK(open->round.round == 1);
  CHECK(open->round.base_version == 0);
  CHECK(open->round.started_at == 2010);
  CHECK(open->round.target == 2);
  REQUIRE(open->tasks.size() == 2);
  check_same(open->tasks[0], decided);
  check_same(open->tasks[1], tasks[1]);
  CHECK(!world.store->rounds().unfinished(world.run + 1).value());
}

TEST_CASE("rounds open one after the other") {
  StoreWorld world;
  world.start_round({"a"});
  const auto open = [&](Round round) {
    return world.store->rounds().open(world.run, some_round(round), {some_task("a")});
  };
  CHECK(code_of(open(1)) == Errc::conflict);  // Open already.
  CHECK(code_of(open(2)) == Errc::conflict);  // The first is still open.
  REQUIRE(world.store->rounds().commit(some_commit(world.run, 1)));
  CHECK(code_of(open(1)) == Errc::conflict);  // Closed.
  CHECK(code_of(open(3)) == Errc::conflict);  // Round 2 is missing.
  CHECK(open(2).has_value());
  CHECK(code_of(world.store->rounds().open(world.run + 1, some_round(1), {})) == Errc::not_found);
}

TEST_CASE("a round whose tasks can't all be stored is not opened") {
  StoreWorld world;
  world.run = world.store->runs().create(some_run()).value().id;
  const auto twice = world.store->rounds().open(world.run, some_round(1),
                                                {some_task("a"), some_task("b"), some_task("a")});
  CHECK(code_of(twice) == Errc::conflict);
  CHECK(!world.store->rounds().unfinished(world.run).value());
  CHECK(world.store->rounds().tasks(world.run, 1).value().empty());
  TaskRecord largest = some_task("a", std::numeric_limits<std::uint64_t>::max());
  CHECK(code_of(world.store->rounds().open(world.run, some_round(1), {largest})) ==
        Errc::invalid_input);
}

TEST_CASE("replacements join an open round only, and a client counts once") {
  StoreWorld world;
  const auto tasks = world.start_round({"a"});
  CHECK(code_of(world.store->rounds().add_tasks(world.run, 1, {some_task("a")})) == Errc::conflict);
  TaskRecord lost = tasks[0];
  lost.state = TaskState::lost;
  lost.reason = "gone";
  REQUIRE(world.store->rounds().decide({lost}));
  const auto again =
      world.store->rounds().add_tasks(world.run, 1, {some_task("a"), some_task("c")}).value();
  REQUIRE(again.size() == 2);
  CHECK(again[0].id > tasks[0].id);
  CHECK(world.store->rounds().tasks(world.run, 1).value().size() == 3);
  CHECK(world.store->rounds().tasks(world.run, 1).value()[0].reason == "gone");
  CHECK(code_of(world.store->rounds().add_tasks(world.run, 2, {some_task("d")})) ==
        Errc::not_found);
  REQUIRE(world.store->rounds().commit(some_commit(world.run, 1)));
  CHECK(code_of(world.store->rounds().add_tasks(world.run, 1, {some_task("d")})) == Errc::conflict);
}

TEST_CASE("a task is decided once, and a group of verdicts is written completely or not at all") {
  StoreWorld world;
  const auto tasks = world.start_round({"a", "b", "c"});
  REQUIRE(world.store->rounds().decide({accepted(tasks[0])}));
  TaskRecord refused = tasks[1];
  refused.state = TaskState::refused;
  refused.reason = "not finite";
  const auto states = [&] {
    std::string text;
    for (const auto& task : world.store->rounds().tasks(world.run, 1).value()) {
      text += std::to_string(static_cast<int>(task.state));
    }
    return text;
  };
  CHECK(code_of(world.store->rounds().decide({refused, accepted(tasks[0])})) == Errc::conflict);
  CHECK(states() == "100");
  CHECK(code_of(world.store->rounds().decide({refused, refused})) == Errc::conflict);
  CHECK(states() == "100");
  TaskRecord unknown = refused;
  unknown.id = TaskId{999};
  CHECK(code_of(world.store->rounds().decide({refused, unknown})) == Errc::not_found);
  CHECK(states() == "100");
  REQUIRE(world.store->rounds().decide({refused}));
  CHECK(states() == "120");
  check_same(world.store->rounds().tasks(world.run, 1).value()[1], refused);
  REQUIRE(world.store->rounds().commit(some_commit(world.run, 1)));
  CHECK(states() == "123");  // c was late,
  CHECK(code_of(world.store->rounds().decide({accepted(tasks[2])})) ==
        Errc::conflict);  // and stays so.
}

TEST_CASE("tasks that are not too old move into the next round, and end with the run") {
  StoreWorld world;
  auto tasks = world.start_round({"a", "b", "c"});
  REQUIRE(world.store->rounds().decide({accepted(tasks[0])}));
  RoundCommit commit = some_commit(world.run, 1);
  commit.oldest_base = 0;
  REQUIRE(world.store->rounds().commit(commit));
  // Open tasks between two rounds.
  const auto under_way = world.store->rounds().offered_tasks(world.run).value();
  REQUIRE(under_way.size() == 2);
  check_same(under_way[0], tasks[1]);
  TaskRecord fresh = some_task("a");
  fresh.base_version = 1;
  const auto opened = world.store->rounds().open(world.run, some_round(2), {fresh}).value();
  REQUIRE(opened.size() == 1);
  world.reopen();
  const auto open = world.store->rounds().unfinished(world.run).value();
  REQUIRE(open->tasks.size() == 3);
  CHECK(open->tasks[0].client == "b");
  CHECK(open->tasks[0].round == 2);
  CHECK(open->tasks[0].base_version == 0);
  CHECK(open->tasks[2].base_version == 1);
  CHECK(world.store->rounds().find_task(world.run, tasks[1].id).value()->round == 2);
  CHECK(!world.store->rounds().find_task(world.run + 1, tasks[1].id).value());

  REQUIRE(world.store->rounds().decide({accepted(open->tasks[0])}));
  commit = some_commit(world.run, 2);
  commit.oldest_base = 1;
  REQUIRE(world.store->rounds().commit(commit));
  CHECK(world.summary_of(2).clients_accepted == 1);
  CHECK(world.store->rounds().find_task(world.run, tasks[2].id).value()->state == TaskState::late);
  CHECK(world.store->rounds().find_task(world.run, opened[0].id).value()->state ==
        TaskState::offered);
  REQUIRE(world.store->runs().set_state(world.run, RunState::finished));
  CHECK(world.store->rounds().find_task(world.run, opened[0].id).value()->state == TaskState::late);
}

TEST_CASE("a round is closed once, with its checkpoint and its retention") {
  StoreWorld world;
  world.start_round({"a"});
  CHECK(code_of(world.store->rounds().commit(some_commit(world.run, 2))) == Errc::not_found);
  REQUIRE(world.store->rounds().commit(some_commit(world.run, 1)));
  CHECK(code_of(world.store->rounds().commit(some_commit(world.run, 1))) == Errc::conflict);
  CHECK(!world.store->rounds().unfinished(world.run).value());
  world.open(2, {"a"});
  RoundCommit last = some_commit(world.run, 2);
  last.dropped_versions = {0, 1};
  REQUIRE(world.store->rounds().commit(last));
  const auto kept = world.store->rounds().checkpoints(world.run).value();
  REQUIRE(kept.size() == 1);
  check_same(kept[0], some_checkpoint(2));
  // The digest outlives the file.
  CHECK(world.summary_of(1).model_digest == some_checkpoint(1).digest.hex());
}

TEST_CASE("a commit that fails in part changes nothing") {
  StoreWorld world;
  world.start_round({"a"});
  RoundCommit commit = some_commit(world.run, 1);
  commit.traffic = {{.task = TaskId{999}, .bytes_up = 1, .bytes_down = 1, .seconds = 1}};
  CHECK(code_of(world.store->rounds().commit(commit)) == Errc::not_found);
  commit.traffic.clear();
  commit.checkpoint.file.clear();
  CHECK(code_of(world.store->rounds().commit(commit)) == Errc::invalid_input);
  CHECK(world.store->rounds().unfinished(world.run).value()->tasks.at(0).state ==
        TaskState::offered);
  CHECK(world.store->rounds().checkpoints(world.run).value().size() == 1);
  CHECK(world.store->summaries().rounds(world.run).value().empty());
}

TEST_CASE("text with any bytes is stored unchanged") {
  StoreWorld world;
  const std::string hostile("'; DROP TABLE client; --\0\xff", 26);
  REQUIRE(world.store->members().touch(hostile, false));
  CHECK(world.store->members().all().value().at(0).name == hostile);
}

TEST_CASE("invalid values in the file are corrupt") {
  StoreWorld world;
  world.run = world.store->runs().create(some_run()).value().id;
  sqlite3_exec(world.store->raw(), "UPDATE run SET seed = '12x'", nullptr, nullptr, nullptr);
  CHECK(code_of(world.store->runs().latest()) == Errc::corrupt);
  sqlite3_exec(world.store->raw(),
               "PRAGMA ignore_check_constraints = 1; UPDATE run SET seed = '1',"
               " state = 'sleeping'",
               nullptr, nullptr, nullptr);
  CHECK(code_of(world.store->runs().latest()) == Errc::corrupt);
}

}  // namespace fl::test
