// SPDX-License-Identifier: Apache-2.0
// Newcomers: clients that have said Hello and are not in the run, for as long as that says
// anything.
#include "server/round/newcomers.hpp"
#include "shared/base/limits.hpp"
#include "tests/wire/simulation.hpp"

#include <doctest/doctest.h>

namespace fl::test {

using namespace fl::server;
namespace {

struct NewcomersWorld {
  Simulation simulation;
  Newcomers newcomers;

  void say_hello(WaitsFor waits_for) {
    newcomers.hear("a", {waits_for, {.software = "tributary 1.0", .model = "lenet"}});
  }
  void pass(Duration duration) {
    simulation.spawn(sleep_for(duration));
    simulation.run();
  }
};

}  // namespace

TEST_CASE("a client that waits for a run is known until it should have asked again") {
  NewcomersWorld world;
  CHECK(world.newcomers.find("a") == nullptr);
  world.say_hello(WaitsFor::a_run);
  REQUIRE(world.newcomers.find("a") != nullptr);
  CHECK(world.newcomers.find("a")->said.model == "lenet");
  CHECK(world.newcomers.all().size() == 1);
  CHECK(world.newcomers.count() == 1);
  world.pass(limits::backoff_max);
  CHECK(world.newcomers.count() == 1);
  world.pass(limits::newcomer_max);
  CHECK(world.newcomers.count() == 0);
  CHECK(world.newcomers.all().empty());
  CHECK(world.newcomers.find("a") == nullptr);
}

TEST_CASE("a client may load its data for longer, and one that declines waits for another run") {
  NewcomersWorld world;
  world.newcomers.decline("a");  // Nothing is known of it.
  CHECK(world.newcomers.count() == 0);
  world.say_hello(WaitsFor::its_data);
  world.pass(limits::newcomer_max);
  REQUIRE(world.newcomers.find("a") != nullptr);
  world.newcomers.decline("a");
  // It connects again, and says no more why it declines.
  world.say_hello(WaitsFor::its_data);
  CHECK(world.newcomers.find("a")->waits_for == WaitsFor::another_run);
}

TEST_CASE("a client that is forgotten is none, until it says Hello again") {
  NewcomersWorld world;
  world.newcomers.forget("a");
  world.say_hello(WaitsFor::its_data);
  world.newcomers.decline("a");
  world.newcomers.forget("a");
  CHECK(world.newcomers.count() == 0);
  world.say_hello(WaitsFor::its_data);
  CHECK(world.newcomers.find("a")->waits_for == WaitsFor::its_data);
}

}  // namespace fl::test
