// SPDX-License-Identifier: Apache-2.0
// --over-select 0: a round asks more clients than it needs, according to the share of slow clients.
#include "server/cohort/over_selection.hpp"
#include "tests/world/scenario.hpp"

namespace fl::test {

using namespace fl::server;
namespace {

Candidate asked(TaskState state, double seconds) {
  Candidate candidate{"", 100, {}};
  candidate.history.last_round = 1;
  candidate.history.last_state = state;
  candidate.history.last_seconds = seconds;
  return candidate;
}

std::vector<Candidate> all(std::size_t n, const Candidate& candidate) {
  return std::vector<Candidate>(n, candidate);
}

void add(std::vector<Candidate>& to, std::size_t n, const Candidate& candidate) {
  to.insert(to.end(), n, candidate);
}

TEST_CASE("a round asks only its target while no client is known to be slow") {
  CHECK(adapted_cohort(6, {}) == 6);
  CHECK(adapted_cohort(6, all(10, Candidate{"", 100, {}})) == 6);
  CHECK(adapted_cohort(6, all(10, asked(TaskState::accepted, 3))) == 6);
  CHECK(adapted_cohort(6, all(10, asked(TaskState::lost, 3))) == 6);  // None is known to be fast.
}

TEST_CASE("if a share p of the clients is slow, a round asks 1 / (1 - p) times its target") {
  auto candidates = all(8, asked(TaskState::accepted, 3));
  add(candidates, 2, asked(TaskState::accepted, 10));
  CHECK(adapted_cohort(8, candidates) == 10);
  CHECK(adapted_cohort(4, candidates) == 5);
  CHECK(adapted_cohort(6, candidates) == 8);  // 7.5
  for (const TaskState state : {TaskState::late, TaskState::lost, TaskState::refused}) {
    auto others = all(8, asked(TaskState::accepted, 3));
    add(others, 2, asked(state, 10));
    CHECK(adapted_cohort(8, others) == 10);
  }
}

TEST_CASE("a client does not count as slow if its round closed early") {
  auto candidates = all(8, asked(TaskState::accepted, 3));
  add(candidates, 4, asked(TaskState::late, 5));
  add(candidates, 4, Candidate{"", 100, {}});
  CHECK(adapted_cohort(8, candidates) == 8);
}

TEST_CASE("a round asks at most twice its target") {
  auto candidates = all(2, asked(TaskState::accepted, 3));
  add(candidates, 8, asked(TaskState::lost, 3));
  CHECK(adapted_cohort(6, candidates) == 12);
}

TEST_CASE("a federation with slow connections learns to ask more clients than it needs") {
  WorldOptions options = calm(6);
  options.settings.min_clients = 3;
  options.settings.clients_per_round = 3;
  options.settings.over_select = 0;
  options.settings.rounds = 20;
  World world(options);
  const auto is_slow = [](std::string_view name) {
    return name == "client-2" || name == "client-5";
  };
  world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
    if (!is_up && header.has_offer() && is_slow(client))
      world.link_of(client)->slow_down(client == "client-2" ? 100 : 200);
  };
  // No two updates arrive at the same time, because a closing round still accepts updates that are
  // being checked.
  world.on_connect = [](const std::string& client, Line& up, Line&) {
    const int number = client.back() - '0';
    up.bytes_per_s = 5000 * number * number;
    return true;
  };
  REQUIRE(world.run());
  CHECK(check(world));
  CHECK(tasks_of(world, 1).size() == 3);
  bool has_measured = false;
  std::size_t most = 0;
  for (Round round = 1; round <= options.settings.rounds; ++round) {
    const auto tasks = tasks_of(world, round);
    most = std::max(most, tasks.size());
    CHECK(count(tasks, TaskState::accepted) == 3);
    for (const TaskRecord& task : tasks) {
      if (task.state != TaskState::accepted) continue;
      // A task's seconds are the client's own time, not its round's.
      CHECK((is_slow(task.client) ? task.seconds > 1 : task.seconds < 1));
      has_measured = has_measured || is_slow(task.client);
    }
  }
  CHECK(has_measured);
  CHECK(most > 3);
  CHECK(most <= 6);
}

}  // namespace
}  // namespace fl::test
