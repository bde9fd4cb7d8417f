// SPDX-License-Identifier: Apache-2.0
// Clients leave, join or are revoked at unusual moments: while a round opens or is recorded, while
// the client is away, or after the last round.
#include "tests/support/sanitized.hpp"
#include "tests/world/scenario.hpp"

namespace fl::test {
namespace {

using namespace std::chrono_literals;

/// Calls `act` once, `after` this time from when the engine begins to make a model.
template <class Act>
class AtClosing {
 public:
  static Awaitable<void> run(World& world, Duration after, Act act) {
    const auto is_closing = [&world] {
      return world.engine() != nullptr &&
             world.engine()->view().status().phase == "making the new model";
    };
    for (int i = 0; i < 100'000 && !is_closing(); ++i) co_await sleep_for(1ms);
    co_await sleep_for(after);
    act(world);
  }
};

TEST_CASE("a client may be revoked at any moment while its round is being recorded") {
  for (const char* const mode : {"sync", "async:buffer=2", "sync:late=1"}) {
    CAPTURE(std::string(mode));
    for (int delay = 0; delay < 70; delay += or_sanitized(3, 7)) {
      CAPTURE(delay);
      WorldOptions options = calm(3);
      options.settings.mode = mode;
      options.settings.min_clients = 2;
      options.settings.deadline_s = mode == std::string_view("async:buffer=2") ? 0 : 5;
      options.settings.rounds = 3;
      options.seed = static_cast<std::uint64_t>(delay);
      World world(options);
      world.clients().at("client-3").may_fail = true;
      world.on_frame = [&world](const std::string& client, bool is_up, const wire::Header& header) {
        if (!is_up && header.has_offer() && client == "client-3")
          world.link_of(client)->slow_down(20);
      };
      const auto revoke = [](World& of) { of.revoke("client-3"); };
      world.spawn(AtClosing<decltype(revoke)>::run(world, delay * 1ms, revoke));
      REQUIRE(world.run());
      CHECK(check(world));
      CHECK(world.server_starts() == 1);
    }
  }
}

TEST_CASE("a round does not wait for a client that is revoked while the round is being opened") {
  class Revoke {
   public:
    static Awaitable<void> run(World& world) {
      // After the cohort is sampled, before the round's row is written.
      while (!world.engine() || world.engine()->view().status().phase != "collecting")
        co_await sleep_for(1ms);
      world.revoke("client-3");
    }
  };
  int lost = 0;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    CAPTURE(seed);
    WorldOptions options = calm(3);
    options.settings.min_clients = 2;
    options.settings.clients_per_round = 3;
    options.settings.rounds = 2;
    options.settings.deadline_s = 0;
    options.seed = seed;
    World world(options);
    world.clients().at("client-3").may_fail = true;
    world.spawn(Revoke::run(world));
    REQUIRE(world.run());
    CHECK(check(world));
    for (const TaskRecord& task : tasks_of(world, 1)) {
      if (task.client != "client-3") continue;
      CHECK(task.state == TaskState::lost);
      CHECK(task.reason == "it was revoked");
      ++lost;
    }
  }
  CHECK(lost > 5);
}

TEST_CASE("a round does not wait for a client that is revoked while it is away") {
  WorldOptions options = calm(3);
  options.settings.min_clients = 2;
  options.settings.rounds = 2;
  options.settings.deadline_s = 0;
  World world(options);
  bool is_away = false;
  bool is_ready = false;  // client-3, before another; so the first round asks it.
  world.on_connect = [&](const std::string& client, Line&, Line&) {
    return client == "client-3" ? !is_away : is_ready || client == "client-2";
  };
  class Revoke {
   public:
    static Awaitable<void> run(World& world) {
      co_await sleep_for(30s);
      world.revoke("client-3");
    }
  };
  world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
    is_ready = is_ready || (client == "client-3" && header.has_ready());
    if (client != "client-3" || is_up || !header.has_offer() || is_away) return;
    is_away = true;
    world.link_of(client)->cut();
    world.spawn(Revoke::run(world));
  };
  REQUIRE(world.run());
  CHECK(check(world));
  const auto tasks = tasks_of(world, 1);
  const auto lost = std::ranges::find(tasks, TaskState::lost, &TaskRecord::state);
  REQUIRE(lost != tasks.end());
  CHECK(lost->client == "client-3");
  CHECK(lost->reason == "it was revoked");
}

TEST_CASE("an evaluation that reaches the target ends a run that is waiting for trainers") {
  WorldOptions options = calm(2);
  options.settings.rounds = 50;
  options.settings.target_accuracy = 0.997;
  options.members.push_back({"judge", {0, 0, 50}, true});
  for (auto& member : options.members) member.part.client = 0;  // All have the judge's optimum.
  options.latency_max = 1ms;
  options.pause_max = 500ms;
  World world(options);
  int accepted = 0;
  world.on_connect = [&](const std::string& client, Line&, Line&) {
    return client == "judge" || accepted < 8;
  };
  world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
    if (is_up) return;
    // The judge receives the last version only after the trainers have left.
    if (client == "judge" && header.has_evaluate()) world.link_of(client)->slow_down(30);
    const bool is_accepted = header.has_verdict();
    if (!is_accepted || ++accepted < 8) return;
    for (const char* const name : {"client-1", "client-2"}) {
      if (MemoryLink* const link = world.link_of(name)) link->cut();
    }
  };
  REQUIRE(world.run());
  CHECK(check(world));
  const auto history = History::open(world);
  CHECK(history->store->summaries().rounds(history->run.id).value().size() == 4);
}

TEST_CASE("the trainers' own accuracy never ends a run, also not after a restart") {
  WorldOptions options = calm(2);
  for (auto& member : options.members) {
    member.part.holdout = 10;
    member.part.client = 0;
  }
  options.settings.rounds = 12;
  options.settings.target_accuracy = 0.5;
  World world(options);
  bool is_killed = false;
  world.on_frame = [&](const std::string&, bool is_up, const wire::Header& header) {
    if (is_up || !header.has_offer() || header.offer().round() != 8) return;
    if (!std::exchange(is_killed, true)) world.kill_server(false);
  };
  REQUIRE(world.run());
  CHECK(check(world));
  CHECK(is_killed);
  const auto history = History::open(world);
  const auto rounds = history->store->summaries().rounds(history->run.id).value();
  CHECK(rounds.size() == 12);
  CHECK(rounds.at(8).eval_accuracy.value_or(0) > 0.5);
}

TEST_CASE("trainers that reconnect after the last round still measure the last version") {
  WorldOptions options = calm(2);
  for (auto& member : options.members) member.part.holdout = 10;
  World world(options);
  bool is_killed = false;
  world.on_frame = [&](const std::string&, bool is_up, const wire::Header& header) {
    if (is_up || !header.has_evaluate()) return;
    if (!std::exchange(is_killed, true)) world.kill_server(false);
  };
  REQUIRE(world.run());
  CHECK(check(world));
  CHECK(is_killed);
  CHECK(world.elapsed() < limits::last_evaluations_max / 2);
  const auto history = History::open(world);
  for (const auto& round : history->store->summaries().rounds(history->run.id).value())
    CHECK(round.eval_loss.has_value());
}

TEST_CASE("bounded staleness: a late joiner that is the first to reconnect delays nobody") {
  WorldOptions options = calm(3);
  options.settings.mode = "async:buffer=2,ahead=2";
  options.settings.min_clients = 2;
  options.settings.rounds = 30;
  World world(options);
  int accepted = 0;
  bool is_back = false;
  world.on_connect = [&](const std::string& client, Line&, Line&) {
    if (client == "client-3") return accepted >= 20;
    return accepted < 30 || is_back;
  };
  world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
    if (is_up) {
      is_back |= accepted >= 30 && client == "client-3" && header.has_ready();
      return;
    }
    const bool is_accepted = header.has_verdict();
    if (is_accepted && ++accepted == 30) world.kill_server(false);
  };
  REQUIRE(world.run());
  CHECK(check(world));
  CHECK(world.server_starts() == 2);
  CHECK(is_back);
}

}  // namespace
}  // namespace fl::test
