// SPDX-License-Identifier: Apache-2.0
// The roster: which clients are connected or awaited, their traffic, and who is too far ahead.
#include "server/round/roster.hpp"
#include "shared/base/limits.hpp"
#include "tests/server/round/fake_peer.hpp"
#include "tests/wire/simulation.hpp"

#include <doctest/doctest.h>

namespace fl::test {

using namespace fl::server;
namespace {

using namespace std::chrono_literals;

std::vector<std::string> names_of(const std::vector<Roster::PeerPointer>& peers) {
  std::vector<std::string> names;
  for (const auto& peer : peers) names.push_back(peer->facts().name);
  return names;
}

using Names = std::vector<std::string>;

TEST_CASE("trainers and evaluators are counted separately and listed by name") {
  Simulation simulation;
  Roster roster(0);
  for (const char* const name : {"c", "a", "b"}) roster.enter(trainer(name));
  roster.enter(evaluator("judge"));
  CHECK(roster.sessions() == 4);
  CHECK(roster.trainer_count() == 3);
  CHECK(roster.evaluator_count() == 1);
  CHECK(names_of(roster.trainers()) == Names{"a", "b", "c"});
  CHECK(names_of(roster.here()) == Names{"a", "b", "c", "judge"});
  REQUIRE(roster.leave(roster.find("b"), true));
  CHECK(roster.find("b") == nullptr);
  CHECK(roster.trainer_count() == 2);
  CHECK(names_of(roster.trainers()) == Names{"a", "c"});
}

TEST_CASE("trainers that all fail alike, again and again, have a common failure") {
  Simulation simulation;
  Roster roster(0);
  const auto fail = [&](const std::string& client, const std::string& reason) {
    for (int i = 0; i < limits::failures_alike_max; ++i) roster.note_failure(client, reason);
  };
  fail("a", "round 7, step 12 of 20: the loss is inf");
  CHECK(roster.common_failure(0).empty());  // Nobody is here.
  roster.enter(trainer("a"));
  roster.enter(evaluator("judge"));
  CHECK(roster.common_failure(1) ==
        "each client that is here has failed 5 times in a row: round 7, step 12 of 20: the loss is "
        "inf. The training diverges: try a lower --lr");
  CHECK(roster.common_failure(2).empty());
  roster.enter(trainer("b"));
  CHECK(roster.common_failure(2).empty());
  fail("b", "round 8, step 1 of 3: the loss is nan");
  CHECK_FALSE(roster.common_failure(2).empty());
  roster.note_failure("b", "there is no GPU");
  CHECK(roster.common_failure(2).empty());
  fail("b", "there is no GPU");
  CHECK(roster.common_failure(2).empty());
  fail("a", "there is no GPU");
  CHECK(roster.common_failure(2) ==
        "each client that is here has failed 5 times in a row: there is no GPU");
  roster.count_update("a");
  CHECK(roster.common_failure(2).empty());
}

TEST_CASE("the end of a replaced session does not remove its successor") {
  Simulation simulation;
  Roster roster(0);
  const auto first = trainer("a");
  const auto second = trainer("a");
  roster.enter(first);
  REQUIRE(roster.leave(first, false));
  roster.enter(second);
  CHECK_FALSE(roster.leave(first, true));
  CHECK(roster.find("a") == second);
  CHECK(roster.sessions() == 1);
}

TEST_CASE("traffic adds up over a client's sessions") {
  Simulation simulation;
  Roster roster(0);
  const auto first = trainer("a");
  const auto other = trainer("b");
  roster.enter(first);
  roster.enter(other);
  first->up = 10;
  first->down = 100;
  other->up = 1;
  roster.leave(first, false);
  const auto second = trainer("a");
  second->up = 5;
  roster.enter(second);
  CHECK(roster.traffic_of("a") == Traffic{15, 100});
  roster.leave(second, false);
  CHECK(roster.traffic_of("a") == Traffic{15, 100});
  CHECK(roster.traffic_of("nobody") == Traffic{});
  CHECK(roster.traffic() == Traffic{16, 100});
  CHECK(roster.recorded_traffic() == Traffic{16, 100});
  roster.set_recorded_traffic({7, 8});
  CHECK(roster.recorded_traffic() == Traffic{7, 8});
}

TEST_CASE("a client that lost its connection is awaited for a limited time") {
  Simulation simulation;
  Roster roster(0);
  const auto lost = trainer("lost");
  const auto gone = trainer("gone");
  roster.enter(lost);
  roster.enter(gone);
  roster.leave(lost, false);
  roster.leave(gone, true);
  CHECK(roster.is_awaited("lost"));
  CHECK_FALSE(roster.is_awaited("gone"));
  CHECK(roster.absent_count() == 1);
  CHECK(roster.expire_absences() == Clock::now() + limits::farewell_max);
  class Wait {
   public:
    static Awaitable<void> run() { co_await sleep_for(limits::farewell_max); }
  };
  simulation.spawn(Wait::run());
  simulation.run();
  CHECK_FALSE(roster.is_awaited("lost"));
  CHECK(roster.expire_absences() == never);
  CHECK(roster.absent_count() == 0);
}

TEST_CASE("a client stays expelled until it connects again") {
  Simulation simulation;
  Roster roster(0);
  roster.expel("a", "revoked");
  roster.expel("b", "enrolled anew");
  REQUIRE(roster.expelled().size() == 2);
  CHECK(roster.expelled()[0] == std::pair<std::string, std::string>("a", "revoked"));
  roster.enter(trainer("a"));
  REQUIRE(roster.expelled().size() == 1);
  CHECK(roster.expelled()[0].first == "b");
}

TEST_CASE("each session is told the initial model's digest once") {
  Simulation simulation;
  Roster roster(0);
  const auto first = trainer("a");
  roster.enter(first);
  CHECK(roster.take_initial_notice("a"));
  CHECK_FALSE(roster.take_initial_notice("a"));
  roster.leave(first, false);
  roster.enter(trainer("a"));
  CHECK(roster.take_initial_notice("a"));
}

TEST_CASE("sessions that displace each other are reported once, and only within a time window") {
  Simulation simulation;
  Roster roster(0);
  int suspected = 0;
  for (int i = 0; i < 3 * limits::displaced_max; ++i) suspected += roster.count_displacement("a");
  CHECK(suspected == 1);
  class Wait {
   public:
    static Awaitable<void> run() {
      co_await sleep_for(limits::displaced_window + std::chrono::seconds(1));
    }
  };
  simulation.spawn(Wait::run());
  simulation.run();
  suspected = 0;
  for (int i = 0; i < limits::displaced_max - 1; ++i) suspected += roster.count_displacement("a");
  CHECK(suspected == 0);
  CHECK(roster.count_displacement("a"));
}

TEST_CASE("no trainer gets more than `ahead` updates ahead of the slowest one here") {
  Simulation simulation;
  Roster roster(2);
  roster.enter(trainer("fast"));
  roster.enter(trainer("slow"));
  for (int i = 0; i < 3; ++i) roster.count_update("fast");
  CHECK(names_of(roster.trainers_in_pace(0)) == Names{"slow"});
  roster.count_update("slow");
  CHECK(names_of(roster.trainers_in_pace(0)) == Names{"fast", "slow"});
  Roster free(0);
  free.enter(trainer("fast"));
  free.enter(trainer("slow"));
  for (int i = 0; i < 100; ++i) free.count_update("fast");
  CHECK(names_of(free.trainers_in_pace(0)) == Names{"fast", "slow"});
}

TEST_CASE("a client that joins late begins with the slowest one's count") {
  Simulation simulation;
  Roster roster(1);
  roster.set_update_counts({{"a", 10}, {"b", 11}, {"late", 2}});
  roster.enter(trainer("a"));
  roster.enter(trainer("b"));
  roster.enter(trainer("late"));
  // With a count of 2 it would hold up both others.
  CHECK(names_of(roster.trainers_in_pace(0)) == Names{"a", "b", "late"});
  roster.count_update("b");
  CHECK(names_of(roster.trainers_in_pace(0)) == Names{"a", "late"});
}

TEST_CASE("a client without updates that count is not asked for twice as long after each time") {
  Simulation simulation;
  Roster roster(0);
  for (const char* const name : {"a", "b", "mute"}) roster.enter(trainer(name));
  CHECK(roster.bench().note_miss("mute", 30s) == Duration::zero());
  CHECK(roster.bench().note_miss("mute", 30s) == Duration::zero());
  CHECK(names_of(roster.trainers_to_ask(2)) == Names{"a", "b", "mute"});
  CHECK(roster.bench().note_miss("mute", 30s) == 60s);
  CHECK(roster.bench().misses_of("mute") == 3);
  CHECK(names_of(roster.trainers_to_ask(2)) == Names{"a", "b"});
  CHECK(names_of(roster.trainers_in_pace(2)) == Names{"a", "b"});
  CHECK(names_of(roster.trainers_to_ask(3)) == Names{"a", "b", "mute"});  // Needed for a quorum.
  CHECK(roster.bench().note_miss("mute", 30s) == 120s);
  CHECK(roster.bench().note_miss("mute", 0s) == limits::bench_min);
  for (int i = 0; i < 100; ++i) CHECK(roster.bench().note_miss("mute", 1000h) <= limits::bench_max);
  CHECK(roster.bench().note_miss("mute", 1000h) == limits::bench_max);
  roster.count_update("mute");
  CHECK(roster.bench().misses_of("mute") == 0);
  CHECK(names_of(roster.trainers_to_ask(2)) == Names{"a", "b", "mute"});
}

TEST_CASE("a client that can't take part is known with its reason until it can") {
  Simulation simulation;
  Roster roster(0);
  CHECK(roster.turn_away("b", "another model"));
  CHECK(!roster.turn_away("b", "another model"));
  CHECK(roster.turn_away("b", "no data"));
  CHECK(roster.turn_away("a", "another model"));
  using Reasons = std::vector<std::pair<std::string, std::string>>;
  CHECK(roster.turned_away() == Reasons{{"a", "another model"}, {"b", "no data"}});
  roster.enter(trainer("b"));
  CHECK(roster.turned_away() == Reasons{{"a", "another model"}});
}

/// Lets the client miss so often that it is not asked for a while.
void bench(Roster& roster, const std::string& client) {
  for (int i = 0; i < limits::misses_max; ++i) roster.bench().note_miss(client, 1h);
  REQUIRE(roster.bench().until(client) > Clock::now());
}

TEST_CASE("a client is asked again once it is pardoned, unless it has missed since") {
  Simulation simulation;
  Roster roster(0);
  for (const char* const name : {"a", "b", "mute"}) roster.enter(trainer(name));
  CHECK(!roster.bench().pardon("mute", Clock::now()));
  CHECK(!roster.bench().pardon("nobody", Clock::now()));
  const TimePoint before = Clock::now();
  simulation.wait(10s);
  bench(roster, "mute");
  CHECK(!roster.bench().pardon("mute", before));
  CHECK(names_of(roster.trainers_to_ask(2)) == Names{"a", "b"});
  simulation.wait(10s);
  CHECK(roster.bench().pardon("mute", Clock::now()));
  CHECK(names_of(roster.trainers_to_ask(2)) == Names{"a", "b", "mute"});
  CHECK(roster.bench().misses_of("mute") == 0);
  CHECK(roster.bench().why("mute").empty());
}

TEST_CASE("a new start of a client's program is forgiven, but not again and again") {
  Simulation simulation;
  Roster roster(0);
  roster.enter(trainer("mute"));
  for (int i = 0; i < limits::fresh_starts_max; ++i) {
    simulation.wait(100s);
    bench(roster, "mute");
    CHECK(roster.bench().why("mute").find("start its program anew") != std::string::npos);
    simulation.wait(100s);
    CHECK(!roster.bench().forgive_fresh_start("mute", 0s));    // It does not say when it began.
    CHECK(!roster.bench().forgive_fresh_start("mute", 101s));  // It began before it missed.
    CHECK(roster.bench().misses_of("mute") == limits::misses_max);
    CHECK(roster.bench().forgive_fresh_start("mute", 99s));
    CHECK(roster.bench().misses_of("mute") == 0);
    CHECK(!roster.bench().forgive_fresh_start("mute", 99s));  // There is nothing to forgive.
  }
  bench(roster, "mute");
  simulation.wait(100s);
  CHECK(!roster.bench().forgive_fresh_start("mute", 1s));
  CHECK(roster.bench().why("mute").find("program") == std::string::npos);
  CHECK(roster.bench().why("mute").find("fl-server pardon mute") != std::string::npos);
  SUBCASE("an update counts") { roster.count_update("mute"); }
  SUBCASE("an operator pardons it") { CHECK(roster.bench().pardon("mute", Clock::now())); }
  bench(roster, "mute");
  simulation.wait(100s);
  CHECK(roster.bench().forgive_fresh_start("mute", 1s));
}

TEST_CASE("a client that shows notices is told why it is not asked, and for how long") {
  Simulation simulation;
  Roster roster(0);
  const auto shows = trainer("shows");
  const auto older = trainer("older");
  shows->editable_facts().features = Features::of(End::client);
  roster.enter(shows);
  roster.enter(older);
  for (const auto& peer : {shows, older}) {
    roster.bench().tell(*peer);
    bench(roster, peer->facts().name);
    roster.bench().tell(*peer);
  }
  CHECK(older->posted.empty());
  REQUIRE(shows->posted.size() == 1);
  const std::string text = shows->posted.front().notice().text();
  CHECK(text == roster.bench().why("shows"));
  CHECK(
      text.starts_with("shows was asked 3 times in a row without an update that counts: it is not "
                       "asked before 20"));
  simulation.wait(limits::bench_max);
  CHECK(roster.bench().why("shows").empty());
}

TEST_CASE("after a restart a client is not asked for the rest of its time") {
  Simulation simulation;
  Roster roster(0);
  for (const char* const name : {"a", "b", "c", "d", "e"}) roster.enter(trainer(name));
  roster.bench().restore({{"a", {.in_a_row = 2, .lost_seconds = 30, .seconds_since = 0}},
                          {"b", {.in_a_row = 3, .lost_seconds = 30, .seconds_since = 59}},
                          {"c", {.in_a_row = 3, .lost_seconds = 30, .seconds_since = 60}},
                          {"d", {.in_a_row = 4, .lost_seconds = 30, .seconds_since = 119}},
                          {"e", {.in_a_row = 3, .lost_seconds = 30, .seconds_since = -1e9}}});
  CHECK(names_of(roster.trainers_to_ask(0)) == Names{"a", "c"});
  CHECK(roster.bench().misses_of("d") == 4);
  CHECK(roster.bench().note_miss("a", 30s) == 60s);  // The client's third update.
  CHECK(names_of(roster.trainers_to_ask(0)) == Names{"c"});
  roster.count_update("e");
  CHECK(names_of(roster.trainers_to_ask(0)) == Names{"c", "e"});
}

}  // namespace
}  // namespace fl::test
