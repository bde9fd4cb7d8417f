// SPDX-License-Identifier: Apache-2.0
// The places of sessions: a limit for all and one for each member, whose oldest session makes room.
#include "server/net/member_places.hpp"

#include "shared/base/async/clock.hpp"
#include "shared/base/limits.hpp"
#include "tests/support/memory_link.hpp"
#include "tests/support/print_result.hpp"
#include "tests/wire/simulation.hpp"

#include <boost/asio/io_context.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::server;
namespace {

TEST_CASE("when all places are taken a member is told so; a place that is given back is free") {
  const auto places = std::make_shared<MemberPlaces>(2);
  auto a = places->take("a");
  const auto b = places->take("b");
  const auto refused = places->take("c");
  REQUIRE(!refused);
  CHECK(refused.error().code() == Errc::unavailable);
  CHECK(refused.error().message().find("2 sessions") != std::string::npos);
  CHECK(places->count() == 2);
  a->reset();
  CHECK(places->take("c"));
  CHECK(places->count() == 1);
}

TEST_CASE("a member that connects again and again must wait, and nobody else") {
  SimulatedTime time;
  const auto places = std::make_shared<MemberPlaces>(100);
  for (int i = 0; i < limits::quota_sessions; ++i) CHECK(places->take("a"));
  const auto refused = places->take("a");
  REQUIRE(!refused);
  CHECK(refused.error().code() == Errc::unavailable);
  CHECK(refused.error().message().find("too often") != std::string::npos);
  CHECK(places->count() == 0);
  CHECK(places->take("b"));
}

TEST_CASE("a member whose sessions end by its own fault waits longer each time, and nobody else") {
  Simulation simulation;
  const auto pass = [&](Duration time) {
    simulation.spawn(sleep_for(time));
    simulation.run();
  };
  const auto places = std::make_shared<MemberPlaces>(100);
  const auto pause_after_fault = [&] {
    places->take("a").value()->blame();
    const TimePoint before = Clock::now();
    auto refused = places->take("a");
    CHECK(places->take("b"));
    while (!refused) {
      CHECK(refused.error().code() == Errc::unavailable);
      CHECK(refused.error().message().find("broke the protocol") != std::string::npos);
      pass(std::chrono::seconds(1));
      refused = places->take("a");
    }
    return Clock::now() - before;
  };
  Duration pause = pause_after_fault();
  CHECK(pause == limits::fault_pause_min);
  while (pause < limits::fault_pause_max) {
    const Duration next = pause_after_fault();
    REQUIRE(next == std::min<Duration>(2 * pause, limits::fault_pause_max));
    pause = next;
  }
  CHECK(pause_after_fault() == limits::fault_pause_max);
  pass(limits::fault_memory);
  CHECK(pause_after_fault() == limits::fault_pause_min);
}

TEST_CASE("a member with too many sessions loses the oldest of them, and nobody else any") {
  SimulatedTime time;
  net::io_context io;
  const auto places = std::make_shared<MemberPlaces>(100);
  std::vector<std::shared_ptr<MemoryLink>> links;
  std::vector<std::shared_ptr<MemberPlaces::Place>> held;
  const auto begin = [&](const std::string& name) {
    auto place = places->take(name);
    if (!place) return false;
    auto pair = MemoryLink::make({io.get_executor(), "far", Line()},
                                 {io.get_executor(), "near", Line()}, nullptr);
    (*place)->use(pair.first);
    links.push_back(pair.first);
    links.push_back(pair.second);
    held.push_back(std::move(*place));
    return true;
  };
  CHECK(begin("honest"));
  for (std::size_t i = 0; i < limits::sessions_of_member_max; ++i) CHECK(begin("greedy"));
  CHECK(!begin("greedy"));
  CHECK(begin("honest"));
  while (time.step(io)) continue;
  CHECK(!links[0]->is_down());
  CHECK(links[2]->is_down());
  CHECK(!links[4]->is_down());
}

}  // namespace
}  // namespace fl::test
