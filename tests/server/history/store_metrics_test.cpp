// SPDX-License-Identifier: Apache-2.0
// The store makes summaries of metrics: whose count, how several clients' values make one, which is
// the run's main one; and that a history of schema 5 is read like one of today.
#include "server/history/schema.hpp"
#include "server/history/sqlite.hpp"
#include "tests/server/history/records.hpp"
#include "tests/server/history/store_world.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace fl::test {

using namespace fl::server;
namespace {

EvaluationRecord evaluation(RunId run, Version version, std::string client, std::uint64_t examples,
                            std::vector<MetricKind> kinds, std::vector<MetricValue> values) {
  EvaluationRecord record = some_evaluation(run, version, std::move(client), examples, 1.0, 0);
  record.evaluator = true;
  record.kinds = std::move(kinds);
  record.metrics = std::move(values);
  return record;
}

std::map<std::string, MetricSummary> figures(StoreWorld& world, Version version) {
  std::map<std::string, MetricSummary> found;
  for (const MetricSummary& row : world.store->summaries().metrics(world.run).value())
    if (row.version == version) found[row.name] = row;
  return found;
}

std::vector<std::string> declared(StoreWorld& world) {
  std::vector<std::string> names;
  for (const DeclaredMetric& metric : world.store->measurements().declared(world.run).value())
    names.push_back(metric.kind.name + (metric.by_evaluator ? "!" : ""));
  return names;
}

void start(StoreWorld& world) {
  world.start_round({"a"});
  REQUIRE(world.store->rounds().commit(some_commit(world.run, 1)));
}

TEST_CASE("each metric's values are combined as it was declared") {
  StoreWorld world;
  start(world);
  const std::vector<MetricKind> kinds{known_metric("f1"), known_metric("perplexity"),
                                      known_metric("auroc")};
  // 2tp / (2tp + fp + fn) = 18 / 20 and 2 / 30.
  REQUIRE(world.store->measurements().add(
      evaluation(world.run, 1, "judge", 100, kinds,
                 {{"f1", 0.9, 20}, {"perplexity", std::exp(1.0), 30}, {"auroc", 0.8, 0}})));
  CHECK(figures(world, 1).at("auroc").is_exact);
  REQUIRE(world.store->measurements().add(
      evaluation(world.run, 1, "other judge", 300, kinds,
                 {{"f1", 2.0 / 30, 30}, {"perplexity", std::exp(2.0), 10}, {"auroc", 0.6, 0}})));
  const auto found = figures(world, 1);
  CHECK(found.size() == 4);
  CHECK(found.at("f1").value == doctest::Approx(20.0 / 50).epsilon(1e-12));
  CHECK(found.at("perplexity").value == doctest::Approx(std::exp(1.25)).epsilon(1e-12));
  CHECK(found.at("auroc").value == doctest::Approx(0.65).epsilon(1e-12));
  CHECK(!found.at("auroc").is_exact);
  CHECK(found.at("f1").is_exact);
  CHECK(found.at("f1").clients == 2);
  CHECK(found.at("f1").examples == 400);
  CHECK(found.at("f1").by_evaluators);
  CHECK(found.at("loss").value == 1.0);
  const RoundSummary round = world.summary_of(1);
  CHECK(round.metric == "f1");
  CHECK(round.eval_metric.value() == doctest::Approx(0.4));
  CHECK(round.is_exact);
  CHECK(!round.eval_accuracy);
}

TEST_CASE("a value that is not defined is left out, and an answer replaces all of the one before") {
  StoreWorld world;
  start(world);
  const std::vector<MetricKind> kinds{known_metric("f1"), known_metric("recall")};
  REQUIRE(world.store->measurements().add(
      evaluation(world.run, 1, "judge", 100, kinds, {{"f1", 0.5, 0}, {"recall", 0.5, 0}})));
  REQUIRE(world.store->measurements().add(
      evaluation(world.run, 1, "other", 900, kinds,
                 {{"f1", std::numeric_limits<double>::quiet_NaN(), 0}, {"recall", 0.7, 0}})));
  CHECK(figures(world, 1).at("f1").value == 0.5);
  CHECK(figures(world, 1).at("f1").clients == 1);
  CHECK(figures(world, 1).at("recall").value == doctest::Approx(0.68));
  const auto answers = world.store->measurements().evaluator_answers(world.run, 1).value();
  REQUIRE(answers.size() == 2);
  REQUIRE(answers[1].metrics.size() == 2);
  CHECK(std::isnan(answers[1].metrics[0].value));
  REQUIRE(world.store->measurements().add(
      evaluation(world.run, 1, "other", 900, kinds, {{"recall", 0.7, 0}})));
  CHECK(world.store->measurements().evaluator_answers(world.run, 1).value()[1].metrics.size() == 1);
}

TEST_CASE("what an evaluator declares first counts, and before that what a trainer declares") {
  StoreWorld world;
  start(world);
  CHECK(declared(world).empty());
  CHECK(world.summary_of(1).metric == "accuracy");
  EvaluationRecord trainer =
      evaluation(world.run, 1, "a", 10, {{.name = "x"}, {.name = "y"}}, {{"x", 2, 0}});
  trainer.evaluator = false;
  REQUIRE(world.store->measurements().add(trainer));
  CHECK(declared(world) == std::vector<std::string>{"x", "y"});
  CHECK(world.summary_of(1).metric == "x");
  CHECK(world.summary_of(1).eval_metric == 2.0);
  const std::vector<MetricKind> own{{.name = "y", .lower_is_better = true}, {.name = "z"}};
  REQUIRE(
      world.store->measurements().add(evaluation(world.run, 1, "judge", 10, own, {{"y", 3, 0}})));
  CHECK(declared(world) == std::vector<std::string>{"y!", "z!", "x"});
  CHECK(world.store->measurements().declared(world.run).value()[0].kind.lower_is_better);
  CHECK(world.summary_of(1).metric == "y");
  CHECK(world.summary_of(1).eval_metric == 3.0);
  REQUIRE(world.store->measurements().add(
      evaluation(world.run, 1, "late judge", 10, {{.name = "x"}, {.name = "y"}}, {})));
  CHECK(declared(world) == std::vector<std::string>{"y!", "z!", "x!"});
  CHECK(world.store->measurements().declared(world.run).value()[0].kind.lower_is_better);
}

TEST_CASE(
    "most evaluators say what a metric is and which is the main one, and revoked ones don't") {
  StoreWorld world;
  start(world);
  const std::vector<MetricKind> wrong{{.name = "odd"}, {.name = "y"}};
  const std::vector<MetricKind> right{{.name = "y", .lower_is_better = true}};
  const auto lower = [&](const char* name) {
    for (const DeclaredMetric& metric : world.store->measurements().declared(world.run).value())
      if (metric.kind.name == name) return metric.kind.lower_is_better;
    return false;
  };
  const auto answer = [&](const char* client, const std::vector<MetricKind>& kinds) {
    REQUIRE(world.store->members().touch(client, true));
    REQUIRE(world.store->measurements().add(
        evaluation(world.run, 1, client, 10, kinds, {{"y", 3, 0}})));
  };
  answer("liar", wrong);
  answer("judge", right);
  CHECK(!lower("y"));  // With two evaluators the first one decides.
  CHECK(world.summary_of(1).metric == "odd");
  CHECK(declared(world) == std::vector<std::string>{"odd!", "y!"});
  SUBCASE("a third one outvotes the first") {
    answer("other judge", right);
    CHECK(lower("y"));
    CHECK(world.summary_of(1).metric == "y");
    CHECK(declared(world) == std::vector<std::string>{"y!", "odd!"});
  }
  SUBCASE("the first one is revoked") {
    REQUIRE(world.store->members().revoke("liar", "root"));
    CHECK(lower("y"));
    CHECK(world.summary_of(1).metric == "y");
    CHECK(world.store->measurements().newest(world.run).value().size() == 1);
    const auto answers = world.store->measurements().evaluator_answers(world.run, 1).value();
    REQUIRE(answers.size() == 1);
    CHECK(answers[0].client == "judge");
  }
  SUBCASE("a second declaration of one replaces its first") {
    answer("liar", {{.name = "odd"}, {.name = "y", .lower_is_better = true}});
    CHECK(lower("y"));
  }
}

TEST_CASE("the main metric of evaluators that measure only the loss is the loss") {
  StoreWorld world;
  start(world);
  REQUIRE(world.store->measurements().add(evaluation(world.run, 1, "judge", 10, {}, {})));
  CHECK(world.summary_of(1).metric == "loss");
  CHECK(world.summary_of(1).eval_metric == 1.0);
  REQUIRE(world.store->measurements().add(
      evaluation(world.run, 1, "late judge", 10, {{.name = "x"}}, {{"x", 2, 0}})));
  CHECK(world.summary_of(1).metric == "loss");
}

TEST_CASE("the settings name the main metric before any client does") {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"metric":"f1","target":"mae<=3","target_accuracy":0.5})", "f1"},
      {R"({"metric":"","target":" mae <= 3","target_accuracy":0})", "mae"},
      {R"({"metric":"","target":"f1>=0.3","target_accuracy":0.0})", "f1"},
      {R"({"metric":"","target":"","target_accuracy":0.5})", "accuracy"},
      {R"({"target_accuracy":0.0})", "x"},
      {"", "x"},
  };
  for (const auto& one : cases) {
    CAPTURE(std::string(one.first));
    StoreWorld world;
    start(world);
    REQUIRE(world.store->measurements().add(
        evaluation(world.run, 1, "judge", 10, {{.name = "x"}}, {{"x", 2, 0}})));
    REQUIRE(world.store->runs().change(world.run, 10, one.first));
    CHECK(world.summary_of(1).metric == one.second);
  }
}

TEST_CASE("other settings lift the early end of a run, and the same ones do not") {
  StoreWorld world;
  start(world);
  REQUIRE(world.store->runs().change(world.run, 10, R"({"target":"f1>=0.5"})"));
  REQUIRE(world.store->runs().end_early(world.run, "it is good enough"));
  CHECK(world.store->runs().find(world.run).value()->early_end == "it is good enough");
  REQUIRE(world.store->runs().change(world.run, 10, R"({"target":"f1>=0.5"})"));
  CHECK(world.store->runs().find(world.run).value()->early_end == "it is good enough");
  REQUIRE(world.store->runs().change(world.run, 10, R"({"target":"f1>=0.6"})"));
  CHECK(world.store->runs().find(world.run).value()->early_end.empty());
  CHECK(code_of(world.store->runs().end_early(world.run + 1, "x")) == Errc::not_found);
}

TEST_CASE("evaluations of schema 5 count as they did, with accuracy as the main metric") {
  const TemporaryFolder folder;
  const auto file = folder / "history.sqlite";
  const auto before = history_migrations().first(5);
  {
    const auto db = Database::open({.path = file}).value();
    REQUIRE(migrate(*db, before));
    REQUIRE(db->script(
        "INSERT INTO run (id, key, model, seed, rounds_total, config_json, state, started_at,"
        " queued) VALUES (1, '0123456789abcdef', 'lenet', '7', 9, '{\"target_accuracy\":0.0}',"
        " 'running', 1.0, 0), (2, '1123456789abcdef', 'lenet', '7', 9, '', 'running', 1.0, 1);"
        "INSERT INTO checkpoint (run_id, version, made_at, file, bytes, digest, delta_file,"
        " delta_bytes) SELECT run.id, v.value, 1.0, 'f', 1, printf('%032d', 0), '', 0"
        " FROM run, json_each('[0, 1]') AS v;"
        "INSERT INTO round (run_id, round, base_version, started_at, target, population, ended_at)"
        " SELECT id, 1, 0, 1.0, 1, 1, 2.0 FROM run;"
        "INSERT INTO metric (run_id, version, client, name, value, examples, evaluator, at) VALUES"
        " (1, 1, 'judge', 'accuracy', 0.5, 30, 1, 1.0), (1, 1, 'judge', 'loss', 2.0, 30, 1, 1.0),"
        " (1, 1, 'a', 'accuracy', 0.9, 30, 0, 1.0), (1, 1, 'a', 'loss', 1.0, 30, 0, 1.0),"
        " (2, 1, 'a', 'accuracy', 0.9, 10, 0, 1.0), (2, 1, 'b', 'accuracy', 0.5, 30, 0, 1.0),"
        " (2, 1, 'a', 'own_accuracy', 0.7, 10, 0, 1.0)"));
  }
  const auto store = Store::open({.path = file}).value();
  const auto rounds = store->summaries().rounds(std::nullopt).value();
  REQUIRE(rounds.size() == 2);
  CHECK(rounds[0].eval_accuracy == 0.5);
  CHECK(rounds[0].eval_loss == 2.0);
  CHECK(rounds[1].eval_accuracy.value() == doctest::Approx(0.6));
  CHECK(rounds[1].own_accuracy == 0.7);
  for (const RoundSummary& round : rounds) {
    CHECK(round.metric == "accuracy");
    CHECK(round.eval_metric == round.eval_accuracy);
    CHECK(round.own_metric == round.own_accuracy);
  }
  const auto kinds = store->measurements().declared(1).value();
  REQUIRE(kinds.size() == 1);
  CHECK((kinds[0].kind == known_metric("accuracy")));
  CHECK(kinds[0].by_evaluator);
  CHECK(!store->measurements().declared(2).value()[0].by_evaluator);
  const auto answers = store->measurements().evaluator_answers(1, 1).value();
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].metrics == std::vector<MetricValue>{{"accuracy", 0.5, 0}});
  CHECK(store->runs().find(1).value()->early_end.empty());
}

}  // namespace
}  // namespace fl::test
