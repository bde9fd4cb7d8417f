// SPDX-License-Identifier: Apache-2.0
// The store's views of closed rounds agree with figures worked out by hand.
#include "tests/server/history/store_world.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <tuple>

namespace fl::test {

TEST_CASE("round_summary agrees with figures worked out by hand") {
  StoreWorld world;
  const auto tasks = world.start_round({"a", "b", "c", "d"});
  REQUIRE(world.store->rounds().decide({accepted(tasks[0]), accepted(tasks[2])}));
  CHECK(world.store->summaries().rounds(world.run).value().empty());  // Closed rounds only.
  REQUIRE(world.store->rounds().commit(some_commit(world.run, 1)));
  // Version 1 is measured on 100 and 300 examples: (100*0.9 + 300*0.5) / 400 = 0.6.
  REQUIRE(world.store->measurements().add(some_evaluation(world.run, 1, "a", 100, 2.0, 0.9)));
  REQUIRE(world.store->measurements().add(some_evaluation(world.run, 1, "b", 300, 1.0, 0.5)));
  // No round made version 0.
  REQUIRE(world.store->measurements().add(some_evaluation(world.run, 0, "a", 100, 9.0, 0.1)));

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

  // An evaluator's figures replace the trainers'. Two evaluators are weighted by examples.
  EvaluationRecord evaluator = some_evaluation(world.run, 1, "judge", 10, 0.25, 0.75);
  evaluator.evaluator = true;
  REQUIRE(world.store->measurements().add(evaluator));
  CHECK(world.summary_of(1).eval_loss == 0.25);
  CHECK(world.summary_of(1).eval_accuracy == 0.75);
  evaluator.client = "second judge";
  evaluator.examples = 30;
  evaluator.metrics[0].value = 0.25;
  REQUIRE(world.store->measurements().add(evaluator));
  CHECK(world.summary_of(1).eval_accuracy.value() == doctest::Approx(0.375));
  // A repeated evaluation replaces the first.
  evaluator.metrics[0].value = 0.75;
  REQUIRE(world.store->measurements().add(evaluator));
  CHECK(world.summary_of(1).eval_accuracy == 0.75);
}

TEST_CASE("the store returns each client's newest evaluation and the evaluators' answers") {
  StoreWorld world;
  world.start_round({"a"});
  REQUIRE(world.store->rounds().commit(some_commit(world.run, 1)));
  for (const Version version : {0u, 1u})
    REQUIRE(
        world.store->measurements().add(some_evaluation(world.run, version, "a", 90, 2.0, 0.9)));
  CHECK(world.store->measurements().evaluator_answers(world.run, 1).value().empty());
  for (const auto& [client, version, accuracy] :
       {std::tuple{"judge", 1u, 0.25}, std::tuple{"late judge", 0u, 0.75}}) {
    EvaluationRecord judged = some_evaluation(world.run, version, client, 10, 1.0, accuracy);
    judged.evaluator = true;
    REQUIRE(world.store->measurements().add(judged));
  }
  const auto answers = world.store->measurements().evaluator_answers(world.run, 10).value();
  REQUIRE(answers.size() == 2);
  CHECK(answers[0].version == 0);  // Whoever came first.
  CHECK(answers[0].client == "late judge");
  CHECK(answers[0].evaluator);
  CHECK(answers[0].examples == 10);
  CHECK(answers[0].loss == 1.0);
  CHECK(answers[0].metrics == std::vector<MetricValue>{{.name = "accuracy", .value = 0.75}});
  CHECK(answers[1].client == "judge");
  CHECK(answers[1].metrics == std::vector<MetricValue>{{.name = "accuracy", .value = 0.25}});
  CHECK(world.store->measurements().evaluator_answers(world.run, 11).value().empty());
  const auto newest = world.store->measurements().newest(world.run).value();
  CHECK(newest.size() == 3);
  CHECK(newest.at("late judge").version == 0);
  CHECK(newest.at("a").version == 1);
  CHECK_FALSE(newest.at("a").is_evaluator);
  CHECK(newest.at("judge").version == 1);
  CHECK(newest.at("judge").is_evaluator);
}

TEST_CASE("the evaluation view looks each version up by its key, so it is fast") {
  StoreWorld world;
  sqlite3_stmt* plan = nullptr;
  REQUIRE(sqlite3_prepare_v2(world.store->raw(), "EXPLAIN QUERY PLAN SELECT * FROM evaluation", -1,
                             &plan, nullptr) == SQLITE_OK);
  int steps = 0;
  for (; sqlite3_step(plan) == SQLITE_ROW; ++steps) {
    const std::string step = reinterpret_cast<const char*>(sqlite3_column_text(plan, 3));
    // The medians of a version's rows, and what is bounded by them.
    if (step.starts_with("SEARCH metric "))
      CHECK(step.find("(run_id=? AND version=?)") != std::string::npos);
  }
  CHECK(steps > 0);
  sqlite3_finalize(plan);
}

TEST_CASE("codec_summary agrees with figures worked out by hand") {
  StoreWorld world;
  const auto tasks = world.start_round({"a", "b", "c"});
  TaskRecord half = accepted(tasks[2]);
  half.codec = "fp16";
  half.nmse = 0.5;
  TaskRecord worse = accepted(tasks[1]);
  worse.nmse = 0.03;
  REQUIRE(world.store->rounds().decide({accepted(tasks[0]), worse, half}));
  REQUIRE(world.store->rounds().commit(some_commit(world.run, 1)));
  const auto early = world.store->summaries().codecs(world.run).value();
  REQUIRE(early.size() == 2);
  CHECK_FALSE(early[0].accuracy_first.has_value());
  REQUIRE(world.store->measurements().add(some_evaluation(world.run, 0, "a", 100, 9.0, 0.125)));
  REQUIRE(world.store->measurements().add(some_evaluation(world.run, 1, "a", 100, 2.0, 0.875)));
  const auto rows = world.store->summaries().codecs({}).value();
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
  CHECK(row.save_seconds == 0.5);
  CHECK(row.residual_seconds == 0.125);
  CHECK(row.digest_seconds == 0.03125);
  CHECK(row.sync_seconds == 0.0625);
  CHECK(row.decode_seconds == 0.125);
  CHECK(row.train_seconds == 7);
  CHECK(row.nmse == doctest::Approx(0.02));
  CHECK(row.bytes == 3000);  // The whole round's bytes, with both codecs.
  CHECK(row.accuracy_first == 0.125);
  CHECK(row.accuracy_last == 0.875);
  CHECK(row.metric == "accuracy");
  CHECK(row.value_first == 0.125);
  CHECK(row.value_last == 0.875);
}

TEST_CASE("round_summary has exactly its documented columns") {
  StoreWorld world;
  CHECK(world.text("SELECT group_concat(name, ' ') FROM pragma_table_info('round_summary')") ==
        "run_id round started_at seconds clients_offered clients_accepted bytes_up bytes_down "
        "train_loss eval_loss eval_accuracy model_digest");
}

TEST_CASE("a missing figure is missing in the summary, and a NaN does not spoil a mean") {
  StoreWorld world;
  world.start_round({"a"});
  RoundCommit commit = some_commit(world.run, 1);
  commit.train_loss = std::nan("");
  REQUIRE(world.store->rounds().commit(commit));
  CHECK(!world.summary_of(1).train_loss);
  CHECK(!world.summary_of(1).eval_loss);
  CHECK(!world.summary_of(1).eval_accuracy);
  REQUIRE(
      world.store->measurements().add(some_evaluation(world.run, 1, "a", 5, std::nan(""), 0.5)));
  CHECK(!world.summary_of(1).eval_loss);
  REQUIRE(world.store->measurements().add(some_evaluation(world.run, 1, "b", 5, 3.0, 1.0)));
  CHECK(world.summary_of(1).eval_loss == 3.0);
  CHECK(world.summary_of(1).eval_accuracy == 0.75);
}

TEST_CASE("a round's summary has the mean accuracy of the clients' own models, if they have some") {
  StoreWorld world;
  world.start_round({"a"});
  REQUIRE(world.store->rounds().commit(some_commit(world.run, 1)));
  EvaluationRecord evaluation = some_evaluation(world.run, 1, "a", 100, 2.0, 0.5);
  REQUIRE(world.store->measurements().add(evaluation));
  CHECK(!world.summary_of(1).own_accuracy);
  evaluation.own = EvaluationRecord::Own{1.0, {{.name = "accuracy", .value = 0.75}}};
  REQUIRE(world.store->measurements().add(evaluation));
  evaluation.client = "b";
  evaluation.examples = 300;
  evaluation.own->metrics[0].value = 0.875;
  REQUIRE(world.store->measurements().add(evaluation));
  CHECK(world.summary_of(1).own_accuracy == doctest::Approx(0.84375));
  CHECK(world.summary_of(1).eval_accuracy == 0.5);
}

TEST_CASE("the loss of a diverged training is NaN when it is read") {
  StoreWorld world;
  TaskRecord task = accepted(world.start_round({"a"})[0]);
  task.loss = std::nan("");
  task.norm = std::numeric_limits<double>::infinity();
  REQUIRE(world.store->rounds().decide({task}));
  CHECK(std::isnan(world.store->rounds().tasks(world.run, 1).value()[0].loss));
  CHECK(std::isinf(world.store->rounds().tasks(world.run, 1).value()[0].norm));
}

TEST_CASE("summary() returns the rounds of one run or of all runs in order") {
  StoreWorld world;
  for (const char* key : {"aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"}) {
    world.run = world.store->runs().create(some_run(key)).value().id;
    REQUIRE(world.store->rounds().set_initial_model(world.run, some_checkpoint(0)));
    for (const Round round : {1u, 2u}) {
      world.open(round, {"a"});
      REQUIRE(world.store->rounds().commit(some_commit(world.run, round)));
    }
  }
  std::string all;
  for (const auto& row : world.store->summaries().rounds(std::nullopt).value()) {
    all += std::to_string(row.run) + ":" + std::to_string(row.round) + " ";
  }
  CHECK(all == "1:1 1:2 2:1 2:2 ");
  CHECK(world.store->summaries().rounds(1).value().size() == 2);
  CHECK(world.store->summaries().rounds(7).value().empty());
}

TEST_CASE("an evaluation must be of a known version and of at least one example") {
  StoreWorld world;
  world.start_round({"a"});
  CHECK(code_of(world.store->measurements().add(some_evaluation(world.run, 5, "a", 1, 1, 1))) ==
        Errc::not_found);
  CHECK(code_of(world.store->measurements().add(some_evaluation(world.run, 0, "a", 0, 1, 1))) ==
        Errc::invalid_input);
}

TEST_CASE(
    "client_histories() has each client's last state and late codec, and its last measured speed") {
  StoreWorld world;
  auto tasks = world.start_round({"a", "b", "c", "d"});
  TaskRecord unmeasured = accepted(tasks[1]);
  unmeasured.upload_seconds = 0;
  TaskRecord lost = tasks[3];
  lost.state = TaskState::lost;
  REQUIRE(world.store->rounds().decide({accepted(tasks[0]), unmeasured, lost}));
  CHECK(world.store->rounds().client_histories(world.run).value().empty());
  // If a client is asked twice in a round, the later task counts.
  REQUIRE(world.store->rounds().add_tasks(world.run, 1, {some_task("d")}));
  REQUIRE(world.store->rounds().commit(some_commit(world.run, 1)));
  auto histories = world.store->rounds().client_histories(world.run).value();
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
  REQUIRE(world.store->rounds().decide({accepted(tasks[1])}));
  REQUIRE(world.store->rounds().commit(some_commit(world.run, 2)));
  histories = world.store->rounds().client_histories(world.run).value();
  CHECK(histories.at("a").late_codec == "qsgd:8");
  CHECK(histories.at("a").update_bytes == 12'345);  // Measured in the round before.
  CHECK(histories.at("c").late_codec == "");
  CHECK(histories.at("c").update_bytes == 12'345);

  const auto asked = world.store->summaries().codecs_asked(world.run).value();
  REQUIRE(asked.size() == 7);
  CHECK(asked[0].client == "a");
  CHECK(asked[0].state == TaskState::accepted);
  CHECK(asked[0].codec == "qsgd:8");
  CHECK(asked[0].reason == "it fits");
  CHECK(asked[0].update_bytes == 12'345);
  CHECK(asked[0].ready_seconds == 4.5);
  CHECK(asked[0].upload_seconds == 0.75);
  CHECK(asked[6].round == 2);
  CHECK(world.store->summaries().codecs_asked(world.run + 1).value().empty());
}

TEST_CASE("the cosines of a round are known once it is closed") {
  StoreWorld world;
  const auto tasks = world.start_round({"a", "b", "c"});
  REQUIRE(world.store->rounds().decide({accepted(tasks[0]), accepted(tasks[1])}));
  CHECK_FALSE(world.store->rounds().tasks(world.run, 1).value()[0].cosine);
  RoundCommit commit = some_commit(world.run, 1);
  commit.cosines = {{tasks[0].id, -0.75}, {tasks[2].id, 0.5}};
  CHECK(code_of(world.store->rounds().commit(commit)) == Errc::not_found);  // It is not accepted.
  commit.cosines = {{tasks[0].id, -0.75}};
  REQUIRE(world.store->rounds().commit(commit));
  const auto read = world.store->rounds().tasks(world.run, 1).value();
  CHECK(read[0].cosine == -0.75);
  CHECK_FALSE(read[1].cosine);
}

TEST_CASE("the traffic of a task is added up over the rounds in which it was under way") {
  StoreWorld world;
  const auto tasks = world.start_round({"a", "b"});
  RoundCommit commit = some_commit(world.run, 1);
  commit.traffic = {{tasks[1].id, 7, 7, 7}, {TaskId{999}, 1, 1, 1}};
  CHECK(code_of(world.store->rounds().commit(commit)) == Errc::not_found);
  commit.traffic = {{tasks[0].id, 15, 26, 1.5}, {tasks[1].id, 1, 2, 3}};
  REQUIRE(world.store->rounds().commit(commit));
  world.open(2, {});
  commit = some_commit(world.run, 2);
  commit.traffic = {{tasks[0].id, 100, 100, 9}, {tasks[1].id, 0, 0, 1}};
  REQUIRE(world.store->rounds().commit(commit));
  CHECK(world.text("SELECT group_concat(bytes_up || ' ' || bytes_down || ' ' || seconds, ', ')"
                   " FROM task") == "115 126 9.0, 1 2 3.0");
}

TEST_CASE("events belong to a run or to none") {
  StoreWorld world;
  const RunId run = world.store->runs().create(some_run()).value().id;
  REQUIRE(world.store->events().add(run, EventLevel::warning, "a is slow"));
  REQUIRE(world.store->events().add(0, EventLevel::info, "started"));
  CHECK(code_of(world.store->events().add(77, EventLevel::info, "lost")) == Errc::not_found);
  CHECK(world.text("SELECT group_concat(ifnull(run_id, '-') || ' ' || level || ' ' || text, ', ')"
                   " FROM event WHERE at > 1e9") == "1 warning a is slow, - info started");

  const RunId other = world.store->runs().create(some_run("fedcba9876543210")).value().id;
  REQUIRE(world.store->events().add(other, EventLevel::info, "b is here"));
  const auto texts = [&](std::optional<RunId> of) {
    std::string all;
    const auto events = world.store->events().all(of).value();
    for (const auto& event : events) all += fmt::format("{} {}, ", event.run, event.text);
    return all;
  };
  CHECK(texts(run) == "1 a is slow, 0 started, ");
  CHECK(texts(other) == "0 started, 2 b is here, ");
  CHECK(texts(std::nullopt) == "1 a is slow, 0 started, 2 b is here, ");
}

TEST_CASE("an event's level is stored as a word, and an unknown word is an error") {
  StoreWorld world;
  const std::vector<std::pair<EventLevel, std::string>> levels{{EventLevel::info, "info"},
                                                               {EventLevel::notice, "notice"},
                                                               {EventLevel::warning, "warning"},
                                                               {EventLevel::error, "error"}};
  for (const auto& [level, name] : levels) {
    REQUIRE(world.store->events().add(0, level, "by value"));
    CHECK(world.text("SELECT level FROM event ORDER BY id DESC LIMIT 1") == name);
    CHECK(world.store->events().all(std::nullopt).value().back().level == level);
  }
  CHECK(world.text("UPDATE event SET level = 'fatal' WHERE id = 1 RETURNING level") == "fatal");
  CHECK(code_of(world.store->events().all(std::nullopt)) == Errc::corrupt);
}

TEST_CASE("only the newest events are kept") {
  StoreWorld world;
  REQUIRE(world.store->events().add(0, EventLevel::info, "the first"));
  REQUIRE(world.store->events().add(0, EventLevel::info, "the second"));
  // This stands for all the events between.
  const auto late = fmt::format(
      "INSERT INTO event (id, at, level, text) VALUES ({}, 1, 'info', 'late') RETURNING text",
      Events::rows_max);
  CHECK(world.text(late.c_str()) == "late");
  REQUIRE(world.store->events().add(0, EventLevel::info, "the newest"));
  const auto events = world.store->events().all(std::nullopt).value();
  REQUIRE(events.size() == 3);
  CHECK(events.front().text == "the second");
  CHECK(events.back().text == "the newest");
}

}  // namespace fl::test
