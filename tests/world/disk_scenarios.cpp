// SPDX-License-Identifier: Apache-2.0
// A client's disk that is full for a while: its work waits, and its connection stays.
#include "tests/world/scenario.hpp"

#include <functional>

namespace fl::test {
namespace {

using namespace std::chrono_literals;

Awaitable<void> fill_client_for(World& world, const std::string& client, Duration duration) {
  MemFiles& disk = world.clients().at(client).disk;
  disk.space_limit(disk.bytes_used());
  disk.copy_on_write(true);
  co_await sleep_for(duration);
  disk.copy_on_write(false);
  disk.space_limit(MemFiles::no_limit);
}

TEST_CASE("while a client's disk is full its session stays, and its work goes on with the space") {
  const WorldOptions options = calm(2);
  Digest expected;
  Duration undisturbed{};
  {
    World world(options);
    REQUIRE(world.run());
    expected = final_digest(world).value();
    undisturbed = world.elapsed();
  }
  struct Moment {
    const char* what;
    std::function<bool(const wire::Header&)> is_it;
  };
  const Moment moments[] = {
      {"it enters the run", [](const wire::Header& h) { return h.has_welcome(); }},
      {"it trains", [](const wire::Header& h) { return h.has_offer(); }},
      {"its update is accepted", [](const wire::Header& h) { return h.has_verdict(); }}};
  for (const Moment& moment : moments) {
    CAPTURE(moment.what);
    World world(options);
    int connections = 0;
    bool is_full = false;
    world.on_connect = [&](const std::string& client, Line&, Line&) {
      if (client == "client-1") ++connections;
      return true;
    };
    world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
      if (client != "client-1" || is_up || is_full || !moment.is_it(header)) return;
      is_full = true;
      world.spawn(fill_client_for(world, client, 20s));
    };
    REQUIRE(world.run());
    CHECK(check(world));
    CHECK(is_full);
    CHECK(connections == 1);
    CHECK(world.elapsed() > 20s);
    CHECK(world.elapsed() < undisturbed + 20s + 2 * limits::full_disk_pause);
    CHECK(final_digest(world).value() == expected);
  }
}

TEST_CASE("a client whose disk is full for minutes when it enters the run says so once") {
  const WorldOptions options = calm(2);
  World world(options);
  int connections = 0;
  int reasons = 0;
  bool is_full = false;
  world.on_connect = [&](const std::string& client, Line&, Line&) {
    if (client == "client-1") ++connections;
    return true;
  };
  world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
    if (client != "client-1") return;
    if (is_up && header.has_bye() && !header.bye().reason().empty()) ++reasons;
    if (is_up || is_full || !header.has_welcome()) return;
    is_full = true;
    world.spawn(fill_client_for(world, client, 150s));
  };
  REQUIRE(world.run());
  CHECK(check(world));
  CHECK(connections > 2);
  CHECK(reasons == 1);
}

}  // namespace
}  // namespace fl::test
