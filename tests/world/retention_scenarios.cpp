// SPDX-License-Identifier: Apache-2.0
// Which versions are kept: the newest, and the best by the main metric however long ago it was
// made, whatever server and disk go through.
#include "server/run/best_of_run.hpp"
#include "shared/base/limits.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/world/scenario.hpp"

#include <sqlite3.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::server;
namespace {

/// A run that moves away from its initial model, which an evaluator likes best. Its learning rate
/// is so small that each version is worse than the one before.
WorldOptions worse_and_worse(Round rounds) {
  WorldOptions options = calm(2);
  options.settings.rounds = rounds;
  options.settings.keep_checkpoints = 1;
  options.settings.local_steps = 1;
  options.settings.lr = 0.05;
  options.settings.metric = "distance";
  return options;
}

/// An evaluator, or a trainer's held-out data, whose optimum is that of trainer `point`.
ToyTrainer::Part judging(std::uint32_t point, std::uint64_t examples) {
  ToyTrainer::Part part{point, 0, examples};
  part.metrics = {"accuracy", "distance"};
  return part;
}

std::vector<Version> kept_versions(World& world) {
  std::vector<Version> kept;
  const auto history = History::open(world);
  REQUIRE(history);
  for (const auto& record : history->store->rounds().checkpoints(history->run.id).value())
    kept.push_back(record.version);
  return kept;
}

/// Whether a figure of the version came after the version was dropped.
bool was_measured_late(const History& history, Version version) {
  const std::string sql = fmt::format(
      "SELECT 1 FROM metric AS m JOIN checkpoint AS c USING (run_id, version)"
      " WHERE version = {} AND m.at >= c.dropped_at",
      version);
  bool found = false;
  const auto note = [](void* into, int, char**, char**) {
    *static_cast<bool*>(into) = true;
    return 0;
  };
  REQUIRE(sqlite3_exec(history.store->raw(), sql.c_str(), note, &found, nullptr) == SQLITE_OK);
  return found;
}

/// The version with the least distance by what evaluators answered, or trainers; none if nobody
/// has. best_of_run() finds the same one. It is kept, unless an answer came after it was dropped.
std::optional<Version> least_distance(World& world) {
  const auto history = History::open(world);
  REQUIRE(history);
  std::optional<Version> best;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& row : history->store->summaries().metrics(history->run.id).value()) {
    if (row.name != "distance" || row.value >= least) continue;
    least = row.value;
    best = row.version;
  }
  const auto told = best_of_run(*history->store, history->run, Measurements::Of::all).value();
  CHECK(told.has_value() == best.has_value());
  if (!told) return best;
  CHECK(told->version == best);
  CHECK((told->is_kept || was_measured_late(*history, *best)));
  CHECK(told->figure.name == "distance");
  return best;
}

/// What a run with --keep-checkpoints 1 keeps at its end.
void check_kept(World& world, Version last) {
  (void)least_distance(world);
  std::vector<Version> expected{last};
  {
    const auto history = History::open(world);
    REQUIRE(history);
    const auto best = best_of_run(*history->store, history->run, Measurements::Of::kept).value();
    if (best && best->version != last) expected.insert(expected.begin(), best->version);
  }
  CHECK(kept_versions(world) == expected);
}

}  // namespace

TEST_CASE("an evaluator's best version is kept, however long ago it was made") {
  for (const std::uint32_t point : {5u, 77u}) {
    CAPTURE(point);
    WorldOptions options = worse_and_worse(25);
    options.problem.noise = 0.3;
    options.members.push_back({"judge", judging(point, 50), true});
    World world(options);
    REQUIRE(world.run());
    CHECK(check(world));
    check_kept(world, 25);
  }
}

TEST_CASE("a run whose last version is its best keeps that one alone") {
  WorldOptions options = worse_and_worse(6);
  options.members[1].part.client = 0;
  options.members.push_back({"judge", judging(0, 50), true});
  World world(options);
  REQUIRE(world.run());
  CHECK(check(world));
  CHECK(least_distance(world) == 6);
  CHECK(kept_versions(world) == std::vector<Version>{6});
}

TEST_CASE("without evaluators the version that trainers measure best is kept") {
  WorldOptions options = worse_and_worse(12);
  options.problem.noise = 0.5;
  for (auto& member : options.members) {
    member.part.holdout = 20;
    member.part.metrics = {"distance"};
  }
  World world(options);
  REQUIRE(world.run());
  CHECK(check(world));
  check_kept(world, 12);
}

TEST_CASE("with --keep-best off, and where nobody measures, only the newest version is kept") {
  for (const bool measures : {true, false}) {
    CAPTURE(measures);
    WorldOptions options = worse_and_worse(6);
    options.problem.noise = 0.5;
    options.settings.keep_best = !measures;
    if (measures) options.members.push_back({"judge", judging(0, 50), true});
    World world(options);
    REQUIRE(world.run());
    CHECK(check(world));
    CHECK(kept_versions(world) == std::vector<Version>{6});
  }
}

TEST_CASE("an evaluator that is back after many rounds is asked on beside a best version") {
  // Between the best version and those that it has yet to measure lie more than it is asked for at
  // a time.
  WorldOptions options = worse_and_worse(300);
  options.settings.keep_checkpoints = 5;
  options.members.push_back({"judge", judging(0, 50), true});
  World world(options);
  std::optional<Duration> gone_at;
  world.on_connect = [&](const std::string& client, Line&, Line&) {
    return client != "judge" || !gone_at || world.elapsed() > *gone_at + 2 * limits::farewell_max;
  };
  world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
    const bool goes = client == "judge" && is_up && header.has_evaluation() &&
                      header.evaluation().version() == 3 && !gone_at;
    if (!goes) return;
    gone_at = world.elapsed();
    world.kill_client("judge", false);
  };
  REQUIRE(world.run());
  CHECK(gone_at);
  CHECK(check(world));
  const auto history = History::open(world);
  const auto answers = history->store->measurements().evaluator_answers(history->run.id, 1).value();
  CHECK(answers.back().version == 300);
  Version widest = 0;
  for (std::size_t i = 1; i < answers.size(); ++i)
    widest = std::max(widest, answers[i].version - answers[i - 1].version);
  CHECK(widest > limits::evaluations_asked_max);
}

TEST_CASE("a kill or a power cut at any change of the disk loses no best version") {
  for (const bool is_power_loss : {false, true}) {
    CAPTURE(is_power_loss);
    WorldOptions options = worse_and_worse(3);
    options.problem.noise = 0.5;
    options.members.push_back({"judge", judging(3, 50), true});
    const auto look = [](World& world) { check_kept(world, 3); };
    const std::uint64_t n =
        die_at_each_change(options, is_power_loss, or_sanitized(is_power_loss ? 1 : 3, 17), look);
    CHECK(n > 40);
  }
}

}  // namespace fl::test
