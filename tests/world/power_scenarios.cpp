// SPDX-License-Identifier: Apache-2.0
// Power losses and kills at every change of a disk, one after the other: of the server's in a run
// with all kinds of its files, and of a client's while it downloads a model.
#include "tests/support/sanitized.hpp"
#include "tests/world/scenario.hpp"

#include <utility>

namespace fl::test {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a power loss at any change of the server's disk changes nothing in the end") {
  WorldOptions options = calm(2);
  options.settings.strategy = "fedadam:lr=0.1";
  options.settings.downlink_codec = "qsgd:7";
  options.settings.codec = "delta+qsgd:8";
  const std::uint64_t n = die_at_each_change(options, true, or_sanitized(1, 5));
  CHECK(n > 40);
}

TEST_CASE(
    "a kill or a power loss at any change of a client's disk during a download does no harm") {
  // The download of version 1 takes a minute, so the client saves it several times.
  WorldOptions options = calm(2, large);
  const Digest expected = calm_digest(options);
  for (const bool is_power_loss : {false, true}) {
    CAPTURE(is_power_loss);
    std::uint64_t n = 1;
    for (bool has_died = true; has_died && n < 60; n += or_sanitized(1, 4)) {
      CAPTURE(n);
      options.seed = n;
      World world(options);
      bool is_planned = false;
      world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
        if (client != "client-2" || is_up || !header.has_chunk()) return;
        if (!std::exchange(is_planned, true))
          world.kill_client_at(world.clients().at(client), n, is_power_loss);
      };
      world.on_connect = [](const std::string&, Line& up, Line& down) {
        up.latency = down.latency = 1ms;
        up.bytes_per_s = 1e6;
        down.bytes_per_s = 20e3;
        return true;
      };
      REQUIRE(world.run());
      CHECK(check(world));
      CHECK(final_digest(world).value() == expected);
      has_died = world.clients().at("client-2").starts > 1;
    }
    CHECK(n > 5);
  }
}

}  // namespace
}  // namespace fl::test
