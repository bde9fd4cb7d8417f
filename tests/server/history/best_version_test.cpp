// SPDX-License-Identifier: Apache-2.0
// Which version of a run is the best: directions, ties, values that are not finite, whose figures
// count, and that the value is the one that the view shows.
#include "server/history/best_version.hpp"
#include "tests/server/history/store_world.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::server;
namespace {

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

/// Versions from 0, each with the one value that somebody has measured.
MeasuredVersions values_of(const std::vector<double>& values) {
  MeasuredVersions all;
  for (const double value : values)
    all.versions.push_back({static_cast<Version>(all.versions.size()), true, {{value, 0, 10}}});
  return all;
}

std::optional<Version> best_number(const std::string& metric, const std::vector<double>& values) {
  const auto best = best_of(known_metric(metric), values_of(values));
  return best ? std::optional(best->version) : std::nullopt;
}

/// An evaluation of the metrics "accuracy" (here: `value`) and "loss" (1 - value).
EvaluationRecord evaluation_of(RunId run, Version version, std::string client, double value,
                               bool is_evaluator, std::uint64_t examples = 100) {
  EvaluationRecord record =
      some_evaluation(run, version, std::move(client), examples, 1 - value, value);
  record.evaluator = is_evaluator;
  return record;
}

/// A run with versions 0 to `last`, whose versions before `kept_from` are dropped.
void make_versions(StoreWorld& world, Version last, Version kept_from) {
  world.start_round({"a"});
  for (Round round = 1; round <= last; ++round) {
    if (round > 1) world.open(round, {"a"});
    RoundCommit commit = some_commit(world.run, round);
    if (round == last)
      for (Version version = 0; version < kept_from; ++version)
        commit.dropped_versions.push_back(version);
    REQUIRE(world.store->rounds().commit(commit));
  }
}

MeasuredVersions measured_in(StoreWorld& world, Measurements::Of which = Measurements::Of::all,
                             const std::string& metric = "accuracy") {
  return world.store->measurements().measured(world.run, metric, which).value();
}

}  // namespace

TEST_CASE("the best version has the highest value, or the lowest where lower ones are better") {
  CHECK(best_number("accuracy", {0.1, 0.9, 0.5}) == 1u);
  CHECK(best_number("loss", {0.1, 0.9, 0.5}) == 0u);
  CHECK(best_number("r2", {-3, -1, -2}) == 1u);
  CHECK(best_number("mae", {3, 1, 2}) == 1u);
}

TEST_CASE("of equally good versions the earliest is the best") {
  CHECK(best_number("accuracy", {0.5, 0.9, 0.9, 0.9}) == 1u);
  CHECK(best_number("loss", {0.5, 0.25, 0.25}) == 1u);
  CHECK(best_number("loss", {0.25, 0.25}) == 0u);
}

TEST_CASE("a version without a finite value is never the best") {
  for (const char* const metric : {"accuracy", "loss"}) {
    CAPTURE(std::string(metric));
    CHECK(best_number(metric, {nan_value, infinity, -infinity, 0.5, nan_value}) == 3u);
    CHECK(!best_number(metric, {nan_value, infinity, -infinity}));
    CHECK(!best_number(metric, {}));
  }
  MeasuredVersions nobody = values_of({0.5});
  nobody.versions.push_back({7, true, {}});
  CHECK(best_of(known_metric("accuracy"), nobody)->version == 0);
  // One of two clients has no value.
  nobody.versions.back().claims = {{nan_value, 0, 10}, {0.75, 0, 10}};
  const auto best = best_of(known_metric("accuracy"), nobody);
  REQUIRE(best);
  CHECK(best->version == 7);
  CHECK(best->figure.value == 0.75);
  CHECK(best->clients == 1);
}

TEST_CASE("the best version says its metric, and whether the value is exact") {
  MeasuredVersions all = values_of({0.5});
  all.versions.front().claims.push_back({0.7, 0, 10});
  const auto best = best_of(known_metric("auroc"), all);
  REQUIRE(best);
  CHECK(!best->figure.is_exact);
  CHECK(best_text(*best) == "version 0, auroc ~60.00 %");
  CHECK(best_text(*best_of(known_metric("loss"), values_of({2, 0.125}))) ==
        "version 1, loss 0.1250");
}

TEST_CASE("evaluators' figures count, and trainers' where no evaluator has measured the metric") {
  StoreWorld world;
  make_versions(world, 3, 0);
  auto& measurements = world.store->measurements();
  CHECK(measured_in(world).versions.empty());
  REQUIRE(measurements.add(evaluation_of(world.run, 1, "a", 0.9, false)));
  REQUIRE(measurements.add(evaluation_of(world.run, 2, "a", 0.7, false)));
  CHECK(!measured_in(world).by_evaluators);
  CHECK(best_of(known_metric("accuracy"), measured_in(world))->version == 1);
  // An evaluator whose accuracy is not finite has not measured it.
  REQUIRE(measurements.add(evaluation_of(world.run, 2, "judge", nan_value, true)));
  CHECK(!measured_in(world).by_evaluators);
  REQUIRE(measurements.add(evaluation_of(world.run, 3, "judge", 0.25, true)));
  CHECK(measured_in(world).by_evaluators);
  const auto best = best_of(known_metric("accuracy"), measured_in(world));
  REQUIRE(best);
  CHECK(best->version == 3);
  CHECK(best->by_evaluators);
  CHECK(measured_in(world, Measurements::Of::all, "f1").versions.empty());
}

TEST_CASE("a version that is not kept is known, and left out where only kept ones are asked for") {
  StoreWorld world;
  make_versions(world, 4, 3);
  const std::map<Version, double> values{{1, 0.9}, {3, 0.5}, {4, 0.4}};
  for (const auto& [version, value] : values)
    REQUIRE(
        world.store->measurements().add(evaluation_of(world.run, version, "judge", value, true)));
  const auto all = best_of(known_metric("accuracy"), measured_in(world));
  const auto kept = best_of(known_metric("accuracy"), measured_in(world, Measurements::Of::kept));
  REQUIRE(all);
  REQUIRE(kept);
  CHECK(all->version == 1);
  CHECK(!all->is_kept);
  CHECK(kept->version == 3);
  CHECK(kept->is_kept);
  // Another run's figures are its own.
  const RunId other = world.run;
  world.store->runs().set_state(other, RunState::finished).value();
  world.run = world.store->runs().create(some_run("fedcba9876543210")).value().id;
  CHECK(measured_in(world).versions.empty());
}

TEST_CASE("a version's value is the one that the history's view has") {
  StoreWorld world;
  make_versions(world, 2, 0);
  auto& measurements = world.store->measurements();
  REQUIRE(measurements.add(evaluation_of(world.run, 2, "one", 0.5, true, 10)));
  REQUIRE(measurements.add(evaluation_of(world.run, 2, "two", 0.75, true, 30)));
  REQUIRE(measurements.add(evaluation_of(world.run, 2, "three", 1e6, true, 1'000'000)));
  const auto best = best_of(known_metric("accuracy"), measured_in(world));
  REQUIRE(best);
  CHECK(best->figure.value == doctest::Approx(*world.summary_of(2).eval_metric).epsilon(1e-12));
  CHECK(best->clients == 3);
}

}  // namespace fl::test
