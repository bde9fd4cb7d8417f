// SPDX-License-Identifier: Apache-2.0
// Updates that were trained from older versions: asynchronous rounds, and late updates in
// synchronous rounds.
#include "server/run/round_mode.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/world/scenario.hpp"

namespace fl::test {

using namespace fl::server;
namespace {

using namespace std::chrono_literals;

constexpr std::string_view slow_one = "client-3";

/// Three clients in `mode`. With slow_line() the third uploads very slowly.
WorldOptions with_a_slow_one(std::string mode, Round rounds) {
  WorldOptions options = calm(3);
  options.settings.mode = std::move(mode);
  options.settings.rounds = rounds;
  options.settings.min_clients = 2;
  options.sessions_first = 3;
  return options;
}

/// Slows the line of `slow_one` down whenever it gets an offer.
void slow_line(World& world, double bytes_per_s = 100) {
  world.on_frame = [&world, bytes_per_s](const std::string& client, bool is_up,
                                         const wire::Header& header) {
    if (!is_up && header.has_offer() && client == slow_one)
      world.link_of(client)->slow_down(bytes_per_s);
  };
}

std::vector<TaskRecord> all_tasks(World& world) {
  std::vector<TaskRecord> all;
  for (Round round = 1; round <= world.options().settings.rounds; ++round) {
    const auto some = tasks_of(world, round);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

Round staleness(const TaskRecord& task) { return task.round - 1 - task.base_version; }

std::size_t accepted_of(const std::vector<TaskRecord>& tasks, std::string_view client) {
  return static_cast<std::size_t>(std::ranges::count_if(tasks, [&](const TaskRecord& task) {
    return task.client == client && task.state == TaskState::accepted;
  }));
}

TEST_CASE("an asynchronous run of one client with K = 1 and constant weight is sequential SGD") {
  WorldOptions options = calm(1);
  options.settings.mode = "async:buffer=1,weight=constant";
  options.settings.rounds = 6;
  World world(options);
  REQUIRE(world.run());
  CHECK(check(world));
  // Gradient descent on |w - c|^2 / 2 with 2 steps of 0.3 in each of 6 rounds: w - c shrinks by
  // 0.7^12.
  const auto start = options.problem.initial_weights(options.settings.seed);
  const auto point = options.problem.point(0);
  auto history = History::open(world);
  REQUIRE(history);
  const auto kept = history->store->rounds().checkpoints(history->run.id).value();
  const Layout& layout = options.problem.layout;
  const auto last =
      open_version(world.server_disk(), "/state/checkpoints", kept.back(), layout).value();
  std::vector<float> weights(layout.elements());
  REQUIRE(read_values(*last, 0, weights));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double expected = point[i] + (start[i] - point[i]) * std::pow(0.7, 12);
    CHECK(std::fabs(weights[i] - expected) < 1e-5);
  }
}

TEST_CASE("a slow client does not delay the other clients, and its stale update counts") {
  World world(with_a_slow_one("async:buffer=2", 40));
  slow_line(world, 300);
  REQUIRE(world.run());
  CHECK(check(world));
  const auto tasks = all_tasks(world);
  const auto stale = std::ranges::max_element(tasks, {}, [](const TaskRecord& task) {
    return task.state == TaskState::accepted ? staleness(task) : 0;
  });
  CHECK(stale->client == slow_one);
  CHECK(staleness(*stale) >= 3);
  CHECK(accepted_of(tasks, "client-1") > 5 * accepted_of(tasks, slow_one));
}

TEST_CASE("a buffer takes exactly K updates, or one per client if there are fewer clients") {
  struct Case {
    std::uint32_t clients;
    const char* mode;
    std::size_t taken;
  };
  for (const Case& of : {Case{4, "async:buffer=3", 3}, Case{2, "async:buffer=50", 2}}) {
    CAPTURE(of.mode);
    WorldOptions options = calm(of.clients);
    options.settings.mode = of.mode;
    options.settings.rounds = 8;
    World world(options);
    REQUIRE(world.run());
    CHECK(check(world));
    for (Round round = 1; round <= 8; ++round)
      CHECK(count(tasks_of(world, round), TaskState::accepted) == of.taken);
  }
}

TEST_CASE("a buffer of 10 fills up even if only one client is asked at a time") {
  WorldOptions options = calm(12);
  options.settings.mode = "async:buffer=10";
  options.settings.clients_per_round = 1;
  options.settings.rounds = 4;
  World world(options);
  REQUIRE(world.run());
  CHECK(check(world));
  for (Round round = 1; round <= 4; ++round)
    CHECK(count(tasks_of(world, round), TaskState::accepted) == 10);
}

TEST_CASE("the run's end does not wait for an update that no version will use") {
  WorldOptions options = with_a_slow_one("async:buffer=2", 10);
  World world(options);
  REQUIRE(world.run());
  CHECK(check(world));
  const auto tasks = all_tasks(world);
  CHECK(std::ranges::any_of(tasks, [](const auto& t) { return t.state == TaskState::late; }));
  CHECK(world.elapsed() < limits::farewell_max);
}

TEST_CASE("bounded staleness: a client that is too far ahead waits for the slowest client") {
  WorldOptions options = with_a_slow_one("async:buffer=1,ahead=2", 20);
  options.members.push_back(
      {"judge",
       {9, 0, 50},
       true});  // An evaluator has no update count, so it is never the slowest.
  World world(options);
  slow_line(world);
  REQUIRE(world.run());
  CHECK(check(world));
  const auto tasks = all_tasks(world);
  const std::size_t slow = accepted_of(tasks, slow_one);
  CHECK(slow >= 4);
  // A client that is asked while it is 2 updates ahead may end up 3 ahead.
  CHECK(accepted_of(tasks, "client-1") <= slow + 3);
  CHECK(accepted_of(tasks, "client-2") <= slow + 3);
}

TEST_CASE("bounded staleness still holds after a restart of the server") {
  World world(with_a_slow_one("async:buffer=1,ahead=2", 24));
  slow_line(world);
  const auto listen = world.on_frame;
  int accepted = 0;
  bool is_back = false;  // Whether the slow client has connected again after the restart.
  world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
    listen(client, is_up, header);
    const bool is_accepted =
        header.has_verdict() && header.verdict().outcome() == wire::Verdict::ACCEPTED;
    accepted += is_accepted ? 1 : 0;
    if (is_accepted && accepted == 10) world.kill_server(false);
    if (accepted >= 10 && client == slow_one && header.has_ready()) is_back = true;
  };
  // After the restart the other clients must wait until the slow one is back: the server does not
  // hold anybody back for a client that is away.
  world.on_connect = [&](const std::string& client, Line&, Line&) {
    return accepted < 10 || is_back || client == slow_one;
  };
  REQUIRE(world.run());
  CHECK(check(world));
  CHECK(world.server_starts() == 2);
  std::map<std::string, std::size_t> counts;
  for (const TaskRecord& task : all_tasks(world)) {  // In order of rounds; each accepts one.
    if (task.state != TaskState::accepted) continue;
    // A client that is asked while it is 2 updates ahead may end up 3 ahead.
    CHECK(++counts[task.client] <= counts[std::string(slow_one)] + 3);
  }
}

TEST_CASE("sync=T: every T-th round waits for all open tasks") {
  World world(with_a_slow_one("async:buffer=1,sync=4", 12));
  slow_line(world);
  REQUIRE(world.run());
  CHECK(check(world));
  for (const Round round : {4, 8, 12}) {
    const auto tasks = tasks_of(world, round);
    CHECK(count(tasks, TaskState::accepted) == 3);
    CHECK(accepted_of(tasks, slow_one) == 1);
  }
  for (const TaskRecord& task : all_tasks(world)) {
    if (task.round % 4 == 1 && task.state == TaskState::accepted) CHECK(staleness(task) == 0);
  }
}

TEST_CASE("an update that is more than N versions old (late=N) does not count") {
  World world(with_a_slow_one("async:buffer=2,late=1", 40));
  slow_line(world);
  REQUIRE(world.run());
  CHECK(check(world));
  const auto tasks = all_tasks(world);
  CHECK(std::ranges::any_of(tasks, [](const TaskRecord& task) {
    return task.client == slow_one && task.state == TaskState::late;
  }));
  for (const TaskRecord& task : tasks) {
    if (task.state == TaskState::accepted) CHECK(staleness(task) <= 1);
  }
}

TEST_CASE("in an asynchronous run a task is lost after its deadline") {
  WorldOptions options = with_a_slow_one("async:buffer=2", 60);
  options.settings.deadline_s = 5;
  World world(options);
  slow_line(world);
  REQUIRE(world.run());
  CHECK(check(world));
  const auto tasks = all_tasks(world);
  const auto lost = std::ranges::find(tasks, TaskState::lost, &TaskRecord::state);
  REQUIRE(lost != tasks.end());
  CHECK(lost->client == slow_one);
  CHECK(lost->reason == "no update within 5 s");
}

TEST_CASE("late=1: an update that arrives too late for its round counts in the next round") {
  WorldOptions options = with_a_slow_one("sync:late=1,weight=inverse", 2);
  options.settings.deadline_s = 8;
  World world(options);
  slow_line(world);
  REQUIRE(world.run());
  CHECK(check(world));
  CHECK(count(tasks_of(world, 1), TaskState::accepted) == 2);
  const auto tasks = tasks_of(world, 2);
  CHECK(count(tasks, TaskState::accepted) == 3);
  for (const TaskRecord& task : tasks) CHECK(staleness(task) == (task.client == slow_one));
}

TEST_CASE("a server that dies in an asynchronous run continues the open tasks after its restart") {
  // Die at changes of the server's disk throughout a short run, with and without power loss.
  for (std::uint64_t n = 1; n <= 200; n += or_sanitized(3u, 23u)) {
    WorldOptions options = with_a_slow_one("async:buffer=2", 5);
    options.seed = n;
    World world(options);
    bool is_planned = false;
    world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
      if (is_up || !header.has_offer()) return;
      if (client == slow_one) world.link_of(client)->slow_down(2000);
      if (!std::exchange(is_planned, true)) world.kill_server_at(n, n % 2 == 0);
    };
    INFO("change ", n);
    REQUIRE(world.run());
    CHECK(check(world));
  }
}

}  // namespace
}  // namespace fl::test
