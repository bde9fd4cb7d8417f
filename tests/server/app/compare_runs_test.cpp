// SPDX-License-Identifier: Apache-2.0
// Two runs side by side: which settings differ, what each cost, and when each reached a value.
#include "server/app/compare_runs.hpp"
#include "server/run/settings.hpp"
#include "shared/base/json.hpp"
#include "tests/server/history/store_world.hpp"

#include <regex>

namespace fl::test {

using namespace fl::server;
namespace {

struct TwoRuns {
  StoreWorld world;
  Store& store = *world.store;

  /// A run whose round r has the r-th of these values; NaN: nobody measured it.
  RunId add(const std::string& key, const RunSettings& settings, const std::string& metric,
            const std::vector<double>& values) {
    RunRecord record = some_run(key);
    record.config_json = to_json(settings);
    record.rounds_total = settings.rounds;
    const RunId run = store.runs().create(record).value().id;
    store.rounds().set_initial_model(run, some_checkpoint(0)).value();
    Round number = 0;
    for (const double value : values) {
      ++number;
      store.rounds().open(run, some_round(number), {some_task("a")}).value();
      store.rounds().commit(some_commit(run, number)).value();
      EvaluationRecord evaluation = some_evaluation(run, number, "e", 100, 0.5, 0);
      evaluation.evaluator = true;
      evaluation.kinds = {known_metric(metric)};
      evaluation.metrics = {{.name = metric, .value = value}};
      if (value == value) store.measurements().add(evaluation).value();
    }
    return run;
  }
  [[nodiscard]] RunRecord run(RunId id) { return *store.runs().find(id).value(); }
  RunComparison compare(RunId first, RunId second, std::optional<double> goal = {}) {
    return compare_runs(store, run(first), run(second), goal).value();
  }
};

constexpr double nobody = std::numeric_limits<double>::quiet_NaN();

RunSettings settings(const std::string& codec) {
  RunSettings of;
  of.codec = codec;
  of.rounds = 5;
  return of;
}

TEST_CASE("two runs differ in what was set differently, and in nothing else") {
  TwoRuns runs;
  RunSettings other = settings("topk:0.01");
  other.lr = 0.5;
  const RunId first = runs.add("0123456789abcdef", settings("none"), "accuracy", {0.5});
  const RunId second = runs.add("fedcba9876543210", other, "accuracy", {0.6});
  const auto comparison = runs.compare(first, second);
  REQUIRE(comparison.settings.size() == 2);
  CHECK(comparison.settings[0].setting == "lr");
  CHECK(comparison.settings[0].values == std::array<std::string, 2>{"0.01", "0.5"});
  CHECK(comparison.settings[1].setting == "codec");
  CHECK(runs.compare(first, first).settings.empty());
  // The names of the runs stand above, also where they are the same.
  const std::regex beginning(
      " +run 1 +run 2\nmodel +cnn +cnn\nmethod +fedavg +fedavg\ncodec +none +topk:0.01\n"
      "--lr +0.01 +0.5\nstate ");
  CHECK(std::regex_search(comparison_table(comparison), beginning,
                          std::regex_constants::match_continuous));
}

TEST_CASE("what both have reached is counted in rounds, seconds and bytes from the run's begin") {
  TwoRuns runs;
  const RunId slow =
      runs.add("0123456789abcdef", settings("none"), "accuracy", {0.2, 0.5, nobody, 0.8, 0.7});
  const RunId fast = runs.add("fedcba9876543210", settings("none"), "accuracy", {0.6, 0.9});
  auto comparison = runs.compare(slow, fast);
  CHECK(comparison.goal == 0.8);
  REQUIRE(comparison.runs[0].reached);
  CHECK(comparison.runs[0].reached->round == 4);
  CHECK(comparison.runs[0].reached->seconds == doctest::Approx(4 * 7.5));
  CHECK(comparison.runs[0].reached->bytes == 3000 * (1 + 2 + 3 + 4));
  CHECK(comparison.runs[1].reached->round == 2);
  CHECK(comparison.runs[0].last == 0.7);
  CHECK(comparison.runs[0].best == 0.8);
  CHECK(comparison.runs[0].best_round == 4);
  CHECK(comparison.runs[0].updates == 0);
  CHECK(comparison.runs[1].bytes_down == 2000 * 3);

  comparison = runs.compare(slow, fast, 0.85);
  CHECK_FALSE(comparison.runs[0].reached);
  CHECK(comparison.runs[1].reached->round == 2);
  CHECK(comparison_table(comparison).find("not reached") != std::string::npos);
}

TEST_CASE("a metric whose lower values are better is compared so, and a target is the goal") {
  TwoRuns runs;
  RunSettings with_target = settings("none");
  with_target.target = "mae<=3";
  const RunId first = runs.add("0123456789abcdef", settings("none"), "mae", {5, 4, 2});
  const RunId second = runs.add("fedcba9876543210", settings("none"), "mae", {9, 3.5});
  CHECK(runs.compare(first, second).goal == 3.5);
  CHECK(runs.compare(first, second).runs[0].best == 2);
  const RunId third = runs.add("0000456789abcdef", with_target, "mae", {2.5});
  const auto comparison = runs.compare(first, third);
  CHECK(comparison.goal == 3);
  CHECK(comparison.goal_from == "the target of run 3");
  CHECK(comparison.runs[0].reached->round == 3);
  CHECK(comparison.runs[1].reached->round == 1);
}

TEST_CASE("runs with different metrics have no common value") {
  TwoRuns runs;
  const RunId first = runs.add("0123456789abcdef", settings("none"), "accuracy", {0.5});
  const RunId second = runs.add("fedcba9876543210", settings("none"), "mae", {2});
  CHECK_FALSE(runs.compare(first, second).goal);
  CHECK(comparison_table(runs.compare(first, second)).find("accuracy 50.00 %") !=
        std::string::npos);
  const auto refused = compare_runs(runs.store, runs.run(first), runs.run(second), 0.5);
  CHECK(refused.error().message().find("accuracy and run 2 by mae") != std::string::npos);
  const RunId empty = runs.add("0000456789abcdef", settings("none"), "mae", {});
  CHECK_FALSE(runs.compare(first, empty).goal);
}

TEST_CASE("a comparison as JSON has the numbers of the table") {
  TwoRuns runs;
  const RunId first = runs.add("0123456789abcdef", settings("none"), "accuracy", {0.5, 0.75});
  const RunId second = runs.add("fedcba9876543210", settings("qsgd:8"), "accuracy", {0.75});
  const auto json = parse_json(comparison_json(runs.compare(first, second)));
  REQUIRE(json.is_object());
  CHECK(json["runs"][0]["rounds"] == 2);
  CHECK(json["runs"][0]["value_best"] == 0.75);
  CHECK(json["runs"][1]["reached"]["round"] == 1);
  CHECK(json["runs"][0]["reached"]["bytes"] == 9000);
  CHECK(json["settings"][0]["setting"] == "codec");
  CHECK(json["settings"][0]["values"][1] == "qsgd:8");
  CHECK(json["goal"]["value"] == 0.75);
}

}  // namespace
}  // namespace fl::test
