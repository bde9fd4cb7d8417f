// Every method of the store: what it writes is what is read, its view agrees with figures worked
// out by hand, and nothing can be decided, closed or used twice.
#include "server/store.hpp"
#include "tests/store/records.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/sqlite_files_vfs.hpp"

#include <doctest/doctest.h>
#include <sqlite3.h>

#include <cmath>
#include <limits>

namespace fl::test {
namespace {

/// A store on a disk in memory, and the same store opened again.
struct World {
  MemFiles files;
  SqliteFilesVfs vfs{"store-test", files};
  std::unique_ptr<Store> store;

  World() { reopen(); }
  void reopen() {
    store.reset();
    store = Store::open({.path = "/history.sqlite", .vfs = vfs.name(), .exclusive = true}).value();
  }

  /// A running run with `clients` asked in round 1.
  RunId run = 0;
  std::vector<TaskRecord> start_round(std::vector<std::string> clients) {
    run = store->create_run(some_run()).value().id;
    store->set_initial_model(run, some_checkpoint(0)).value();
    return open(1, std::move(clients));
  }
  std::vector<TaskRecord> open(Round round, std::vector<std::string> clients) {
    std::vector<TaskRecord> tasks;
    for (auto& client : clients) tasks.push_back(some_task(client));
    return store->open_round(run, some_round(round), tasks).value();
  }
  RoundSummary summary_of(Round round) { return store->summary(run).value().at(round - 1); }
  std::string text(const char* sql) {
    sqlite3_stmt* statement = nullptr;
    FL_ASSERT(sqlite3_prepare_v2(store->raw(), sql, -1, &statement, nullptr) == SQLITE_OK);
    FL_ASSERT(sqlite3_step(statement) == SQLITE_ROW);
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement, 0));
    std::string found = bytes == nullptr ? "NULL" : bytes;
    sqlite3_finalize(statement);
    return found;
  }
};

template <class T>
Errc code_of(const Result<T>& result) {
  REQUIRE(!result.has_value());
  return result.error().code();
}

void check_same(const TaskRecord& a, const TaskRecord& b) {
  CHECK(a.id == b.id);
  CHECK(a.round == b.round);
  CHECK(a.base_version == b.base_version);
  CHECK(a.client == b.client);
  CHECK(a.state == b.state);
  CHECK(a.examples == b.examples);
  CHECK(a.steps == b.steps);
  CHECK(a.loss == b.loss);
  CHECK(a.train_seconds == b.train_seconds);
  CHECK(a.norm == b.norm);
  CHECK(a.update_bytes == b.update_bytes);
  CHECK(a.raw_bytes == b.raw_bytes);
  CHECK(a.encode_seconds == b.encode_seconds);
  CHECK(a.decode_seconds == b.decode_seconds);
  CHECK(a.nmse == b.nmse);
  CHECK(a.update_digest == b.update_digest);
  CHECK(a.spool_file == b.spool_file);
  CHECK(a.codec == b.codec);
  CHECK(a.codec_reason == b.codec_reason);
  CHECK(a.ready_seconds == b.ready_seconds);
  CHECK(a.upload_seconds == b.upload_seconds);
  CHECK(a.reason == b.reason);
}

void check_same(const CheckpointRecord& a, const CheckpointRecord& b) {
  CHECK(a.version == b.version);
  CHECK(a.file == b.file);
  CHECK(a.bytes == b.bytes);
  CHECK(a.digest == b.digest);
  CHECK(a.value_max == b.value_max);
  CHECK(a.delta_file == b.delta_file);
  CHECK(a.delta_bytes == b.delta_bytes);
}

}  // namespace

TEST_CASE("a run comes back as it was made, and the latest one is the newest") {
  World world;
  CHECK(!world.store->latest_run().value());
  world.store->create_run(some_run("aaaaaaaaaaaaaaaa")).value();
  const RunRecord made = world.store->create_run(some_run()).value();
  world.reopen();
  const RunRecord run = world.store->latest_run().value().value();
  CHECK(run.id == made.id);
  CHECK(run.key == "0123456789abcdef");
  CHECK(run.model == "cnn");
  CHECK(run.seed == 0xfedc'ba98'7654'3210);
  CHECK(run.rounds_total == 3);
  CHECK(run.config_json == R"({"codec": "qsgd:8"})");
  CHECK(run.state == RunState::waiting);
  CHECK(run.started_at == 1000.5);
}

TEST_CASE("the open run is the oldest that is not over") {
  World world;
  CHECK(!world.store->open_run().value());
  const RunId first = world.store->create_run(some_run("aaaaaaaaaaaaaaaa")).value().id;
  const RunId second = world.store->create_run(some_run("bbbbbbbbbbbbbbbb")).value().id;
  CHECK(world.store->open_run().value()->id == first);
  REQUIRE(world.store->set_run_state(first, RunState::running));
  CHECK(world.store->open_run().value()->id == first);
  REQUIRE(world.store->set_run_state(first, RunState::stopped));
  CHECK(world.store->open_run().value()->id == second);
  REQUIRE(world.store->set_run_state(second, RunState::finished));
  CHECK(!world.store->open_run().value());
}

TEST_CASE("a new run may stop those that are not over, and has a folder of its own") {
  World world;
  const RunRecord first = world.store->create_run(some_run("aaaaaaaaaaaaaaaa")).value();
  CHECK(first.checkpoints.empty());
  RunRecord other = some_run("bbbbbbbbbbbbbbbb");
  other.queued = true;
  const RunRecord second = world.store->create_run(other).value();
  CHECK(world.store->open_run().value()->id == first.id);
  CHECK(!world.store->open_run().value()->queued);
  CHECK(world.store->open_runs().value() == 2);
  REQUIRE(world.store->set_run_state(first.id, RunState::running));
  CHECK(world.store->shown_run().value()->id == first.id);
  const RunRecord third =
      world.store->create_run(some_run("cccccccccccccccc"), Store::Others::stop).value();
  world.reopen();
  CHECK(third.checkpoints == "run-3");
  CHECK(world.store->open_runs().value() == 1);
  CHECK(world.store->open_run().value()->id == third.id);
  CHECK(world.store->open_run().value()->checkpoints == "run-3");
  CHECK(world.store->shown_run().value()->id == second.id);  // The newest that is not waiting.
}

TEST_CASE("a run's key is unique and well formed") {
  World world;
  world.store->create_run(some_run()).value();
  CHECK(code_of(world.store->create_run(some_run())) == Errc::conflict);
  CHECK(code_of(world.store->create_run(some_run("short"))) == Errc::invalid_input);
  RunRecord run = some_run("bbbbbbbbbbbbbbbb");
  run.config_json = "{not json";
  CHECK(code_of(world.store->create_run(run)) == Errc::invalid_input);
}

TEST_CASE("each run state is stored, and unknown runs are not found") {
  World world;
  const RunId run = world.store->create_run(some_run()).value().id;
  for (const auto state :
       {RunState::running, RunState::finished, RunState::stopped, RunState::waiting}) {
    REQUIRE(world.store->set_run_state(run, state));
    CHECK(world.store->latest_run().value()->state == state);
  }
  CHECK(code_of(world.store->set_run_state(run + 1, RunState::running)) == Errc::not_found);
  CHECK(code_of(world.store->change_run(run + 1, 5, "{}")) == Errc::not_found);
}

TEST_CASE("more rounds wake a finished run, but only more than it has closed") {
  World world;
  world.start_round({"a"});
  RoundCommit commit = some_commit(world.run, 1);
  commit.run_state = RunState::finished;
  REQUIRE(world.store->commit_round(commit));
  REQUIRE(world.store->change_run(world.run, 1, "{}"));
  CHECK(world.store->latest_run().value()->state == RunState::finished);
  REQUIRE(world.store->change_run(world.run, 2, "{}"));
  CHECK(world.store->latest_run().value()->state == RunState::running);
  CHECK(world.store->latest_run().value()->rounds_total == 2);
  REQUIRE(world.store->set_run_state(world.run, RunState::stopped));
  REQUIRE(world.store->change_run(world.run, 9, "{}"));
  CHECK(world.store->latest_run().value()->state == RunState::stopped);
}

TEST_CASE("the initial model starts the run, once") {
  World world;
  const RunId run = world.store->create_run(some_run()).value().id;
  CHECK(world.store->checkpoints(run).value().empty());
  REQUIRE(world.store->set_initial_model(run, some_checkpoint(0)));
  CHECK(code_of(world.store->set_initial_model(run, some_checkpoint(0))) == Errc::conflict);
  CHECK(code_of(world.store->set_initial_model(run + 1, some_checkpoint(0))) == Errc::not_found);
  CHECK(world.store->latest_run().value()->state == RunState::running);
  const auto kept = world.store->checkpoints(run).value();
  REQUIRE(kept.size() == 1);
  check_same(kept[0], some_checkpoint(0));
}

TEST_CASE("an initial model for a run that doesn't wait leaves no checkpoint behind") {
  World world;
  const RunId run = world.store->create_run(some_run()).value().id;
  REQUIRE(world.store->set_run_state(run, RunState::stopped));
  CHECK(code_of(world.store->set_initial_model(run, some_checkpoint(0))) == Errc::conflict);
  CHECK(world.store->checkpoints(run).value().empty());
}

TEST_CASE("an open round and its tasks come back after a restart") {
  World world;
  auto tasks = world.start_round({"a", "b"});
  REQUIRE(tasks.size() == 2);
  CHECK(tasks[0].id != tasks[1].id);
  CHECK(tasks[1].client == "b");
  CHECK(tasks[1].round == 1);
  const TaskRecord decided = accepted(tasks[0]);
  REQUIRE(world.store->decide_tasks({decided}));
  world.reopen();
  const auto open = world.store->open_round_of(world.run).value();
  REQUIRE(open.has_value());
  CHECK(open->round.round == 1);
  CHECK(open->round.base_version == 0);
  CHECK(open->round.started_at == 2010);
  CHECK(open->round.range_log2 == -3);
  CHECK(open->round.fraction_bits == 40);
  CHECK(open->round.target == 2);
  REQUIRE(open->tasks.size() == 2);
  check_same(open->tasks[0], decided);
  check_same(open->tasks[1], tasks[1]);
  CHECK(!world.store->open_round_of(world.run + 1).value());
}

TEST_CASE("rounds open one after the other") {
  World world;
  world.start_round({"a"});
  const auto open = [&](Round round) {
    return world.store->open_round(world.run, some_round(round), {some_task("a")});
  };
  CHECK(code_of(open(1)) == Errc::conflict);  // Open already.
  CHECK(code_of(open(2)) == Errc::conflict);  // The first is still open.
  REQUIRE(world.store->commit_round(some_commit(world.run, 1)));
  CHECK(code_of(open(1)) == Errc::conflict);  // Closed.
  CHECK(code_of(open(3)) == Errc::conflict);  // One left out.
  CHECK(open(2).has_value());
  CHECK(code_of(world.store->open_round(world.run + 1, some_round(1), {})) == Errc::not_found);
}

TEST_CASE("a round that can't be opened whole is not opened at all") {
  World world;
  world.run = world.store->create_run(some_run()).value().id;
  const auto twice = world.store->open_round(world.run, some_round(1),
                                             {some_task("a"), some_task("b"), some_task("a")});
  CHECK(code_of(twice) == Errc::conflict);
  CHECK(!world.store->open_round_of(world.run).value());
  CHECK(world.store->tasks(world.run, 1).value().empty());
  TaskRecord huge = some_task("a", std::numeric_limits<std::uint64_t>::max());
  CHECK(code_of(world.store->open_round(world.run, some_round(1), {huge})) == Errc::invalid_input);
}

TEST_CASE("replacements join an open round only, and a client counts once") {
  World world;
  const auto tasks = world.start_round({"a"});
  CHECK(code_of(world.store->add_tasks(world.run, 1, {some_task("a")})) == Errc::conflict);
  TaskRecord lost = tasks[0];
  lost.state = TaskState::lost;
  lost.reason = "gone";
  REQUIRE(world.store->decide_tasks({lost}));
  const auto again = world.store->add_tasks(world.run, 1, {some_task("a"), some_task("c")}).value();
  REQUIRE(again.size() == 2);
  CHECK(again[0].id > tasks[0].id);
  CHECK(world.store->tasks(world.run, 1).value().size() == 3);
  CHECK(world.store->tasks(world.run, 1).value()[0].reason == "gone");
  CHECK(code_of(world.store->add_tasks(world.run, 2, {some_task("d")})) == Errc::not_found);
  REQUIRE(world.store->commit_round(some_commit(world.run, 1)));
  CHECK(code_of(world.store->add_tasks(world.run, 1, {some_task("d")})) == Errc::conflict);
}

TEST_CASE("a task is decided once, and a group of decisions all or not at all") {
  World world;
  const auto tasks = world.start_round({"a", "b", "c"});
  REQUIRE(world.store->decide_tasks({accepted(tasks[0])}));
  TaskRecord refused = tasks[1];
  refused.state = TaskState::refused;
  refused.reason = "not finite";
  const auto states = [&] {
    std::string text;
    for (const auto& task : world.store->tasks(world.run, 1).value()) {
      text += std::to_string(static_cast<int>(task.state));
    }
    return text;
  };
  CHECK(code_of(world.store->decide_tasks({refused, accepted(tasks[0])})) == Errc::conflict);
  CHECK(states() == "100");
  CHECK(code_of(world.store->decide_tasks({refused, refused})) == Errc::conflict);
  CHECK(states() == "100");
  TaskRecord unknown = refused;
  unknown.id = 999;
  CHECK(code_of(world.store->decide_tasks({refused, unknown})) == Errc::not_found);
  CHECK(states() == "100");
  REQUIRE(world.store->decide_tasks({refused}));
  CHECK(states() == "120");
  check_same(world.store->tasks(world.run, 1).value()[1], refused);
  REQUIRE(world.store->commit_round(some_commit(world.run, 1)));
  CHECK(states() == "123");  // c was late,
  CHECK(code_of(world.store->decide_tasks({accepted(tasks[2])})) ==
        Errc::conflict);  // and stays so.
}

TEST_CASE("tasks that are not too old move into the next round, and end with the run") {
  World world;
  auto tasks = world.start_round({"a", "b", "c"});
  REQUIRE(world.store->decide_tasks({accepted(tasks[0])}));
  RoundCommit commit = some_commit(world.run, 1);
  commit.oldest_base = 0;
  REQUIRE(world.store->commit_round(commit));
  // Under way between two rounds.
  const auto under_way = world.store->offered_tasks(world.run).value();
  REQUIRE(under_way.size() == 2);
  check_same(under_way[0], tasks[1]);
  TaskRecord fresh = some_task("a");
  fresh.base_version = 1;
  const auto opened = world.store->open_round(world.run, some_round(2), {fresh}).value();
  REQUIRE(opened.size() == 1);
  world.reopen();
  const auto open = world.store->open_round_of(world.run).value();
  REQUIRE(open->tasks.size() == 3);
  CHECK(open->tasks[0].client == "b");
  CHECK(open->tasks[0].round == 2);
  CHECK(open->tasks[0].base_version == 0);
  CHECK(open->tasks[2].base_version == 1);
  CHECK(world.store->find_task(world.run, tasks[1].id).value()->round == 2);
  CHECK(!world.store->find_task(world.run + 1, tasks[1].id).value());

  REQUIRE(world.store->decide_tasks({accepted(open->tasks[0])}));
  commit = some_commit(world.run, 2);
  commit.oldest_base = 1;
  REQUIRE(world.store->commit_round(commit));
  CHECK(world.summary_of(2).clients_accepted == 1);
  CHECK(world.store->find_task(world.run, tasks[2].id).value()->state == TaskState::late);
  CHECK(world.store->find_task(world.run, opened[0].id).value()->state == TaskState::offered);
  REQUIRE(world.store->set_run_state(world.run, RunState::finished));
  CHECK(world.store->find_task(world.run, opened[0].id).value()->state == TaskState::late);
}

TEST_CASE("a round is closed once, with its checkpoint, its retention and the run's state") {
  World world;
  world.start_round({"a"});
  CHECK(code_of(world.store->commit_round(some_commit(world.run, 2))) == Errc::not_found);
  REQUIRE(world.store->commit_round(some_commit(world.run, 1)));
  CHECK(code_of(world.store->commit_round(some_commit(world.run, 1))) == Errc::conflict);
  CHECK(!world.store->open_round_of(world.run).value());
  world.open(2, {"a"});
  RoundCommit last = some_commit(world.run, 2);
  last.dropped_versions = {0, 1};
  last.run_state = RunState::finished;
  REQUIRE(world.store->commit_round(last));
  const auto kept = world.store->checkpoints(world.run).value();
  REQUIRE(kept.size() == 1);
  check_same(kept[0], some_checkpoint(2));
  CHECK(world.store->latest_run().value()->state == RunState::finished);
  // The digest outlives the file.
  CHECK(world.summary_of(1).model_digest == some_checkpoint(1).digest.hex());
}

TEST_CASE("a commit that can't be whole changes nothing") {
  World world;
  world.start_round({"a"});
  RoundCommit commit = some_commit(world.run, 1);
  commit.traffic = {{.task = 999, .bytes_up = 1, .bytes_down = 1, .seconds = 1}};
  CHECK(code_of(world.store->commit_round(commit)) == Errc::not_found);
  commit.traffic.clear();
  commit.checkpoint.value_max = std::nan("");
  CHECK(code_of(world.store->commit_round(commit)) == Errc::invalid_input);
  CHECK(world.store->open_round_of(world.run).value()->tasks.at(0).state == TaskState::offered);
  CHECK(world.store->checkpoints(world.run).value().size() == 1);
  CHECK(world.store->summary(world.run).value().empty());
}

TEST_CASE("round_summary agrees with figures worked out by hand") {
  World world;
  const auto tasks = world.start_round({"a", "b", "c", "d"});
  REQUIRE(world.store->decide_tasks({accepted(tasks[0]), accepted(tasks[2])}));
  CHECK(world.store->summary(world.run).value().empty());  // Closed rounds only.
  REQUIRE(world.store->commit_round(some_commit(world.run, 1)));
  // Of version 1: 100 and 300 examples; (100*0.9 + 300*0.5) / 400 = 0.6.
  REQUIRE(world.store->add_evaluation(some_evaluation(world.run, 1, "a", 100, 2.0, 0.9)));
  REQUIRE(world.store->add_evaluation(some_evaluation(world.run, 1, "b", 300, 1.0, 0.5)));
  // Of version 0, which no round made.
  REQUIRE(world.store->add_evaluation(some_evaluation(world.run, 0, "a", 100, 9.0, 0.1)));

  const RoundSummary row = world.summary_of(1);
  CHECK(row.run == world.run);
  CHECK(row.round == 1);
  CHECK(row.started_at == 2010);
  CHECK(row.seconds == 7.5);
  CHECK(row.clients_offered == 4);
  CHECK(row.clients_accepted == 2);
  CHECK(row.bytes_up == 1000);
  CHECK(row.bytes_down == 2000);
  CHECK(row.train_loss == 1.0);
  CHECK(row.eval_loss.value() == doctest::Approx(1.25));
  CHECK(row.eval_accuracy.value() == doctest::Approx(0.6));
  CHECK(row.model_digest == some_checkpoint(1).digest.hex());

  // An evaluator's figures go first; two of them are weighted among themselves.
  EvaluationRecord evaluator = some_evaluation(world.run, 1, "judge", 10, 0.25, 0.75);
  evaluator.evaluator = true;
  REQUIRE(world.store->add_evaluation(evaluator));
  CHECK(world.summary_of(1).eval_loss == 0.25);
  CHECK(world.summary_of(1).eval_accuracy == 0.75);
  evaluator.client = "second judge";
  evaluator.examples = 30;
  evaluator.accuracy = 0.25;
  REQUIRE(world.store->add_evaluation(evaluator));
  CHECK(world.summary_of(1).eval_accuracy.value() == doctest::Approx(0.375));
  // A repeated evaluation replaces the first.
  evaluator.accuracy = 0.75;
  REQUIRE(world.store->add_evaluation(evaluator));
  CHECK(world.summary_of(1).eval_accuracy == 0.75);
}

TEST_CASE("codec_summary agrees with figures worked out by hand") {
  World world;
  const auto tasks = world.start_round({"a", "b", "c"});
  TaskRecord half = accepted(tasks[2]);
  half.codec = "fp16";
  half.nmse = 0.5;
  TaskRecord worse = accepted(tasks[1]);
  worse.nmse = 0.03;
  REQUIRE(world.store->decide_tasks({accepted(tasks[0]), worse, half}));
  REQUIRE(world.store->commit_round(some_commit(world.run, 1)));
  const auto early = world.store->codecs(world.run).value();
  REQUIRE(early.size() == 2);
  CHECK_FALSE(early[0].accuracy_first.has_value());
  REQUIRE(world.store->add_evaluation(some_evaluation(world.run, 0, "a", 100, 9.0, 0.125)));
  REQUIRE(world.store->add_evaluation(some_evaluation(world.run, 1, "a", 100, 2.0, 0.875)));
  const auto rows = world.store->codecs({}).value();
  CHECK(rows[0].codec == "fp16");
  CHECK(rows[0].updates == 1);
  CHECK(rows[0].nmse == 0.5);
  const CodecSummary& row = rows[1];
  CHECK(row.run == world.run);
  CHECK(row.codec == "qsgd:8");
  CHECK(row.updates == 2);
  CHECK(row.raw_bytes == 2 * 99'999);
  CHECK(row.update_bytes == 2 * 12'345);
  CHECK(row.encode_seconds == 0.25);
  CHECK(row.decode_seconds == 0.125);
  CHECK(row.train_seconds == 7);
  CHECK(row.nmse == doctest::Approx(0.02));
  CHECK(row.bytes == 3000);  // Of the round, in which both codecs were.
  CHECK(row.accuracy_first == 0.125);
  CHECK(row.accuracy_last == 0.875);
}

TEST_CASE("round_summary has exactly its documented columns") {
  World world;
  CHECK(world.text("SELECT group_concat(name, ' ') FROM pragma_table_info('round_summary')") ==
        "run_id round started_at seconds clients_offered clients_accepted bytes_up bytes_down "
        "train_loss eval_loss eval_accuracy model_digest");
}

TEST_CASE("what is not known is unknown in the summary, and a NaN doesn't spoil a mean") {
  World world;
  world.start_round({"a"});
  RoundCommit commit = some_commit(world.run, 1);
  commit.train_loss = std::nan("");
  REQUIRE(world.store->commit_round(commit));
  CHECK(!world.summary_of(1).train_loss);
  CHECK(!world.summary_of(1).eval_loss);
  CHECK(!world.summary_of(1).eval_accuracy);
  REQUIRE(world.store->add_evaluation(some_evaluation(world.run, 1, "a", 5, std::nan(""), 0.5)));
  CHECK(!world.summary_of(1).eval_loss);
  REQUIRE(world.store->add_evaluation(some_evaluation(world.run, 1, "b", 5, 3.0, 1.0)));
  CHECK(world.summary_of(1).eval_loss == 3.0);
  CHECK(world.summary_of(1).eval_accuracy == 0.75);
}

TEST_CASE("a diverged training's loss is NaN again when read") {
  World world;
  TaskRecord task = accepted(world.start_round({"a"})[0]);
  task.loss = std::nan("");
  task.norm = std::numeric_limits<double>::infinity();
  REQUIRE(world.store->decide_tasks({task}));
  CHECK(std::isnan(world.store->tasks(world.run, 1).value()[0].loss));
  CHECK(std::isinf(world.store->tasks(world.run, 1).value()[0].norm));
}

TEST_CASE("summaries of one run or of all, in order") {
  World world;
  for (const char* key : {"aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"}) {
    world.run = world.store->create_run(some_run(key)).value().id;
    REQUIRE(world.store->set_initial_model(world.run, some_checkpoint(0)));
    for (const Round round : {1u, 2u}) {
      world.open(round, {"a"});
      REQUIRE(world.store->commit_round(some_commit(world.run, round)));
    }
  }
  std::string all;
  for (const auto& row : world.store->summary(std::nullopt).value()) {
    all += std::to_string(row.run) + ":" + std::to_string(row.round) + " ";
  }
  CHECK(all == "1:1 1:2 2:1 2:2 ");
  CHECK(world.store->summary(1).value().size() == 2);
  CHECK(world.store->summary(7).value().empty());
}

TEST_CASE("evaluations must be of a known version and of something") {
  World world;
  world.start_round({"a"});
  CHECK(code_of(world.store->add_evaluation(some_evaluation(world.run, 5, "a", 1, 1, 1))) ==
        Errc::not_found);
  CHECK(code_of(world.store->add_evaluation(some_evaluation(world.run, 0, "a", 0, 1, 1))) ==
        Errc::invalid_input);
}

TEST_CASE(
    "of a client's closed rounds the last one tells whether it was late, and how fast it is") {
  World world;
  auto tasks = world.start_round({"a", "b", "c", "d"});
  TaskRecord unmeasured = accepted(tasks[1]);
  unmeasured.upload_seconds = 0;
  TaskRecord lost = tasks[3];
  lost.state = TaskState::lost;
  REQUIRE(world.store->decide_tasks({accepted(tasks[0]), unmeasured, lost}));
  CHECK(world.store->client_histories(world.run).value().empty());
  // Asked once more in the same round: the later task is the one that counts.
  REQUIRE(world.store->add_tasks(world.run, 1, {some_task("d")}));
  REQUIRE(world.store->commit_round(some_commit(world.run, 1)));
  auto histories = world.store->client_histories(world.run).value();
  REQUIRE(histories.size() == 4);
  CHECK(histories.at("a").update_bytes == 12'345);
  CHECK(histories.at("a").ready_seconds == 4.5);
  CHECK(histories.at("a").upload_seconds == 0.75);
  CHECK(histories.at("a").late_codec == "");
  CHECK(histories.at("a").last_state == TaskState::accepted);
  CHECK(histories.at("d").last_state == TaskState::late);
  CHECK(histories.at("b").update_bytes == 0);
  CHECK(histories.at("c").late_codec == "qsgd:8");
  CHECK(histories.at("d").late_codec == "qsgd:8");

  tasks = world.open(2, {"a", "c"});
  REQUIRE(world.store->decide_tasks({accepted(tasks[1])}));
  REQUIRE(world.store->commit_round(some_commit(world.run, 2)));
  histories = world.store->client_histories(world.run).value();
  CHECK(histories.at("a").late_codec == "qsgd:8");
  CHECK(histories.at("a").update_bytes == 12'345);  // Of the round before.
  CHECK(histories.at("c").late_codec == "");
  CHECK(histories.at("c").update_bytes == 12'345);

  const auto asked = world.store->codecs_asked(world.run).value();
  REQUIRE(asked.size() == 7);
  CHECK(asked[0].client == "a");
  CHECK(asked[0].state == TaskState::accepted);
  CHECK(asked[0].codec == "qsgd:8");
  CHECK(asked[0].reason == "it fits");
  CHECK(asked[0].update_bytes == 12'345);
  CHECK(asked[0].ready_seconds == 4.5);
  CHECK(asked[0].upload_seconds == 0.75);
  CHECK(asked[6].round == 2);
  CHECK(world.store->codecs_asked(world.run + 1).value().empty());
}

TEST_CASE("traffic is added up, alone or with the commit") {
  World world;
  const auto tasks = world.start_round({"a", "b"});
  REQUIRE(world.store->add_traffic({{tasks[0].id, 10, 20, 1.5}, {tasks[1].id, 1, 2, 3}}));
  REQUIRE(world.store->add_traffic({{tasks[0].id, 5, 6, 1.0}}));
  CHECK(code_of(world.store->add_traffic({{tasks[1].id, 7, 7, 7}, {999, 1, 1, 1}})) ==
        Errc::not_found);
  RoundCommit commit = some_commit(world.run, 1);
  commit.traffic = {{tasks[0].id, 100, 100, 9}};
  REQUIRE(world.store->commit_round(commit));
  CHECK(world.text("SELECT group_concat(bytes_up || ' ' || bytes_down || ' ' || seconds, ', ')"
                   " FROM task") == "115 126 9.0, 1 2 3.0");
}

TEST_CASE("events belong to a run or to none") {
  World world;
  const RunId run = world.store->create_run(some_run()).value().id;
  REQUIRE(world.store->add_event(run, "warning", "a is slow"));
  REQUIRE(world.store->add_event(0, "info", "started"));
  CHECK(code_of(world.store->add_event(77, "info", "lost")) == Errc::not_found);
  CHECK(world.text("SELECT group_concat(ifnull(run_id, '-') || ' ' || level || ' ' || text, ', ')"
                   " FROM event WHERE at > 1e9") == "1 warning a is slow, - info started");
}

TEST_CASE("a token is stored without its secret and used once") {
  World world;
  REQUIRE(world.store->add_token(some_token("t1", "site-a")));
  CHECK(code_of(world.store->add_token(some_token("t1", "site-b"))) == Errc::conflict);
  CHECK(!world.store->find_token("t2").value());
  TokenRecord token = world.store->find_token("t1").value().value();
  CHECK(token.id == "t1");
  CHECK(token.name == "site-a");
  CHECK(token.secret_hash == std::string(64, 'a'));
  CHECK(token.expires_at == 9000);
  CHECK(token.used_at == 0);
  CHECK(code_of(world.store->use_token("t2", some_client("site-a", "01"))) == Errc::not_found);
  CHECK(code_of(world.store->use_token("t1", some_client("site-b", "01"))) == Errc::invalid_input);
  CHECK(!world.store->find_client("site-b").value());
  REQUIRE(world.store->use_token("t1", some_client("site-a", "01")));
  CHECK(world.store->find_token("t1").value()->used_at > 0);
  CHECK(code_of(world.store->use_token("t1", some_client("site-a", "02"))) == Errc::conflict);
  const ClientRecord client = world.store->find_client("site-a").value().value();
  CHECK(client.certificate_serial == "01");
  CHECK(client.enrolled_at == 5000);
  CHECK(client.last_seen_at == 0);
  CHECK(client.revoked_at == 0);
}

TEST_CASE("a client revoked between invitation and joining stays out") {
  World world;
  REQUIRE(world.store->touch_client("site-a", false));
  REQUIRE(world.store->add_token(some_token("t1", "site-a")));
  REQUIRE(world.store->revoke("site-a"));
  CHECK(code_of(world.store->use_token("t1", some_client("site-a", "01"))) == Errc::conflict);
  CHECK(world.store->find_token("t1").value()->used_at == 0);
  CHECK(world.store->find_client("site-a").value()->certificate_serial.empty());
}

TEST_CASE("clients: seen, renewed, revoked, listed by name") {
  World world;
  REQUIRE(world.store->touch_client("b", false));
  REQUIRE(world.store->touch_client("a", true));
  const double first_seen = world.store->find_client("b").value()->last_seen_at;
  REQUIRE(world.store->touch_client("b", false));
  CHECK(world.store->find_client("b").value()->last_seen_at > first_seen);
  CHECK(world.store->find_client("b").value()->enrolled_at == first_seen);
  REQUIRE(world.store->set_certificate("b", "ff"));
  CHECK(world.store->find_client("b").value()->certificate_serial == "ff");
  CHECK(code_of(world.store->set_certificate("c", "ff")) == Errc::not_found);
  CHECK(code_of(world.store->revoke("c")) == Errc::not_found);
  REQUIRE(world.store->revoke("b"));
  const double revoked_at = world.store->find_client("b").value()->revoked_at;
  CHECK(revoked_at > 0);
  REQUIRE(world.store->revoke("b"));
  CHECK(world.store->find_client("b").value()->revoked_at == revoked_at);
  CHECK(code_of(world.store->set_certificate("b", "00")) == Errc::conflict);
  const auto clients = world.store->clients().value();
  REQUIRE(clients.size() == 2);
  CHECK(clients[0].name == "a");
  CHECK(clients[0].evaluator);
  CHECK(clients[1].name == "b");
  CHECK(!clients[1].evaluator);
}

TEST_CASE("text of any bytes is kept as it is") {
  World world;
  const std::string hostile("'; DROP TABLE client; --\0\xff", 26);
  REQUIRE(world.store->touch_client(hostile, false));
  CHECK(world.store->clients().value().at(0).name == hostile);
}

TEST_CASE("values that a hand has put into the file are corrupt, not believed") {
  World world;
  world.run = world.store->create_run(some_run()).value().id;
  sqlite3_exec(world.store->raw(), "UPDATE run SET seed = '12x'", nullptr, nullptr, nullptr);
  CHECK(code_of(world.store->latest_run()) == Errc::corrupt);
  sqlite3_exec(world.store->raw(),
               "PRAGMA ignore_check_constraints = 1; UPDATE run SET seed = '1',"
               " state = 'sleeping'",
               nullptr, nullptr, nullptr);
  CHECK(code_of(world.store->latest_run()) == Errc::corrupt);
}

}  // namespace fl::test
