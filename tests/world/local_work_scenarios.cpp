// SPDX-License-Identifier: Apache-2.0
// How many steps a client trains in a round: by time budget, and by schedule.
#include "tests/world/scenario.hpp"

#include <sqlite3.h>

#include <cmath>

namespace fl::test {
namespace {

/// The steps of the round's accepted tasks, by client.
std::map<std::string, std::uint64_t> steps_in(World& world, Round round) {
  std::map<std::string, std::uint64_t> steps;
  for (const auto& task : tasks_of(world, round)) {
    if (task.state == TaskState::accepted) steps[task.client] = task.steps;
  }
  return steps;
}

using Steps = std::map<std::string, std::uint64_t>;

/// Three clients: the second has a fifth of the first's speed, the third has no time for one step.
WorldOptions unequal(double local_seconds) {
  WorldOptions options = calm(3);
  options.settings.momentum = 0;
  options.settings.local_steps = 0;
  options.settings.local_seconds = local_seconds;
  options.members[0].part.step_seconds = 0.25;
  options.members[1].part.step_seconds = 1.25;
  options.members[2].part.step_seconds = 100;
  return options;
}

/// Runs and checks two rounds. Returns the steps of the second.
Steps steps_with(const WorldOptions& options) {
  World world(options);
  REQUIRE(world.run());
  CHECK(check(world));
  return steps_in(world, 2);
}

TEST_CASE("with a time budget each client takes as many steps as fit, at least one") {
  CHECK(steps_with(unequal(2.5)) == Steps{{"client-1", 10}, {"client-2", 2}, {"client-3", 1}});
}

TEST_CASE("with a time budget no client takes more steps or epochs than the settings allow") {
  WorldOptions options = unequal(2.5);
  options.settings.local_steps = 4;
  CHECK(steps_with(options) == Steps{{"client-1", 4}, {"client-2", 2}, {"client-3", 1}});
  options.settings.local_steps = 0;
  options.settings.local_epochs = 1;  // A toy's epoch is one step.
  CHECK(steps_with(options) == Steps{{"client-1", 1}, {"client-2", 1}, {"client-3", 1}});
}

/// The largest distance of a parameter of the last model from the mean of the clients' points.
double distance_from_mean(const WorldOptions& options,
                          const std::function<void(World&)>& prepare = nullptr) {
  World world(options);
  if (prepare) prepare(world);
  REQUIRE(world.run());
  auto history = History::open(world);
  REQUIRE(history);
  const ToyProblem& problem = options.problem;
  const auto kept = history->store->rounds().checkpoints(history->run.id).value();
  const auto strategy = parse_strategy(options.settings.strategy).value();
  const RunLayout vector = run_layout(problem.layout, *strategy).value();
  const auto last =
      open_version(world.server_disk(), "/state/checkpoints", kept.back(), vector.all).value();
  std::vector<float> weights(problem.layout.elements());
  REQUIRE(read_values(*last, 0, weights));
  double largest = 0;
  for (std::size_t i = 0; i < vector.parameter_elements; ++i) {
    double mean = 0;
    for (std::uint32_t k = 0; k < 3; ++k) mean += double{problem.point(k)[i]} / 3;
    largest = std::max(largest, std::fabs(weights[i] - mean));
  }
  return largest;
}

// FedNova divides by the reported steps, so a fast client has no more influence than a slow one.
TEST_CASE("with clients of unequal speed FedNova reaches the mean optimum, and FedAvg does not") {
  WorldOptions options = unequal(2.5);
  options.settings.rounds = 60;
  options.settings.lr = 0.02;
  options.settings.strategy = "fednova";
  CHECK(distance_from_mean(options) < 0.1);
  options.settings.strategy = "fedavg";
  CHECK(distance_from_mean(options) > 0.5);
}

TEST_CASE("SCAFFOLD and FedDyn reach the mean optimum, also when one client joins late") {
  for (const char* const strategy : {"scaffold", "feddyn:alpha=0.5"}) {
    CAPTURE(std::string(strategy));
    WorldOptions options = calm(3);
    options.settings.min_clients = 2;
    options.settings.rounds = 60;
    options.settings.strategy = strategy;
    int accepted = 0;
    const auto late = [&accepted](World& world) {
      world.on_connect = [&accepted](const std::string& client, Line&, Line&) {
        return client != "client-3" || accepted >= 8;
      };
      world.on_frame = [&accepted](const std::string&, bool is_up, const wire::Header& header) {
        if (!is_up && header.has_verdict()) ++accepted;
      };
    };
    CHECK(distance_from_mean(options, late) < 1e-4);
    CHECK(accepted > 100);
  }
}

TEST_CASE("FedDyn reaches the mean optimum despite a lossy codec") {
  WorldOptions options = calm(3);
  options.settings.rounds = 150;
  options.settings.strategy = "feddyn:alpha=0.5";
  options.settings.codec = "qsgd:7";
  CHECK(distance_from_mean(options) < 1e-5);
}

TEST_CASE("a client also refuses an optimizer that the method does not support") {
  WorldOptions options = calm(2);
  options.settings.rounds = 1;
  options.settings.strategy = "fednova";
  World world(options);
  int edited = 0;
  world.on_connect = [&](const std::string&, Line&, Line& down) {
    down.edit = [&](wire::Header& header) {
      if (header.has_offer() && edited++ < 2) header.mutable_offer()->set_optimizer("adam");
    };
    return true;
  };
  REQUIRE(world.run());
  const auto tasks = tasks_of(world, 1);
  const auto lost = std::ranges::find(tasks, TaskState::lost, &TaskRecord::state);
  REQUIRE(lost != tasks.end());
  CHECK(lost->reason.find("strategy 'fednova' must know how far") != std::string::npos);
  CHECK(count(tasks, TaskState::accepted) == 2);
}

TEST_CASE("an update is refused if it reports more steps than fit into the time budget") {
  WorldOptions options = unequal(2.5);
  options.settings.min_clients = 2;
  options.settings.rounds = 1;
  options.sessions_first = options.members.size();
  World world(options);
  world.on_connect = [](const std::string& client, Line& up, Line&) {
    if (client == "client-1") {
      up.edit = [](wire::Header& header) {
        if (header.has_begin()) header.mutable_begin()->set_steps(250'001);
      };
    }
    return true;
  };
  REQUIRE(world.run());
  const auto tasks = tasks_of(world, 1);
  const auto refused = std::ranges::find(tasks, TaskState::refused, &TaskRecord::state);
  REQUIRE(refused != tasks.end());
  CHECK(refused->reason == "it took 250001 steps; 1 to 250000 were asked for");
}

/// One client whose loss falls by 0.95^2 with each step.
WorldOptions adaptive() {
  WorldOptions options = calm(1);
  options.settings.rounds = 6;
  options.settings.lr = 0.05;
  options.settings.local_steps = 8;
  options.settings.local_steps_schedule = "adaptive";
  return options;
}

/// The steps of the only client, by round.
std::vector<std::uint64_t> steps_by_round(World& world) {
  std::vector<std::uint64_t> steps;
  for (Round round = 1; round <= world.options().settings.rounds; ++round)
    steps.push_back(steps_in(world, round).at("client-1"));
  return steps;
}

// A round's loss is measured on the model before it. After n steps its square root is 0.95^n of the
// first.
const std::vector<std::uint64_t> adaptive_steps{8, 8, 6, 4, 3, 3};

TEST_CASE("adaptive: clients take fewer steps as the loss falls") {
  World world(adaptive());
  REQUIRE(world.run());
  CHECK(check(world));
  CHECK(steps_by_round(world) == adaptive_steps);
}

TEST_CASE("adaptive: a restarted server asks for the same steps") {
  for (const Round last : {2u, 4u, 5u}) {
    CAPTURE(last);
    World world(adaptive());
    world.on_frame = [&](const std::string&, bool is_up, const wire::Header& header) {
      const bool is_first = world.server_starts() == 1;
      if (!is_up && is_first && header.has_offer() && header.offer().round() == last)
        world.kill_server(true);
    };
    REQUIRE(world.run());
    CHECK(check(world));
    CHECK(world.server_starts() == 2);
    CHECK(steps_by_round(world) == adaptive_steps);
  }
}

/// The evaluation of `version`, by metric.
std::map<std::string, double> last_evaluation(const History& history, Version version) {
  const std::string sql =
      fmt::format("SELECT name, value FROM evaluation WHERE version = {}", version);
  std::map<std::string, double> values;
  sqlite3_stmt* raw = nullptr;
  REQUIRE(sqlite3_prepare_v2(history.store->raw(), sql.c_str(), -1, &raw, nullptr) == SQLITE_OK);
  const std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)> statement(raw, sqlite3_finalize);
  while (sqlite3_step(raw) == SQLITE_ROW) {
    const auto* const name = reinterpret_cast<const char*>(sqlite3_column_text(raw, 0));
    values[name] = sqlite3_column_double(raw, 1);
  }
  return values;
}

// A client's own model v converges to (v - c) + lambda (v - w) = 0. So v's distance from the
// client's point c is lambda/(1 + lambda) = 1/3 of w's distance, and its loss is 1/9 of w's. Killed
// clients continue with the own models that they had.
TEST_CASE("an update that was trained from an older version than its task's is refused") {
  WorldOptions options = calm(3);
  options.settings.min_clients = 2;
  options.sessions_first = 3;
  World world(options);
  world.on_connect = [](const std::string& client, Line& up, Line&) {
    if (client != "client-1") return true;
    up.edit = [](wire::Header& header) {
      if (header.has_begin() && header.begin().round() == 2) header.mutable_begin()->set_version(0);
    };
    return true;
  };
  REQUIRE(world.run());
  for (const auto& task : tasks_of(world, 2)) {
    const bool is_older = task.client == "client-1";
    CHECK(task.state == (is_older ? TaskState::refused : TaskState::accepted));
    if (is_older) CHECK(task.reason == "it was trained from model version 0, not 1");
  }
}

TEST_CASE("Ditto's own models converge between the client's optimum and the global model") {
  for (const bool kills : {false, true}) {
    CAPTURE(kills);
    WorldOptions options = calm(3);
    options.settings.strategy = "ditto:lambda=0.5,epochs=3";
    options.settings.rounds = 12;
    for (auto& member : options.members) member.part.holdout = 10;
    World world(options);
    world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
      if (kills && !is_up && header.has_verdict() && world.clients().at(client).starts == 1)
        world.kill_client(client, true);
    };
    REQUIRE(world.run());
    CHECK(check(world));
    const auto history = History::open(world);
    REQUIRE(history);
    for (const auto& [name, client] : world.clients()) CHECK(client.starts == (kills ? 2 : 1));
    const auto measured = last_evaluation(*history, options.settings.rounds);
    CHECK(measured.at("loss") > 0.1);
    CHECK(measured.at("own_loss") == doctest::Approx(measured.at("loss") / 9).epsilon(0.01));
    CHECK(measured.at("own_accuracy") > measured.at("accuracy"));
  }
}

}  // namespace
}  // namespace fl::test
