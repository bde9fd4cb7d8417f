// SPDX-License-Identifier: Apache-2.0
// Robust rules in whole federations: check() makes each version again from the accepted updates, in
// memory and in the order of the clients' names.
#include "tests/support/sanitized.hpp"
#include "tests/world/scenario.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fl::test {
namespace {

constexpr std::string_view rules[] = {"median",     "trimmed:1",     "krum:1",
                                      "geomedian",  "multikrum:1,3", "centered-clip:0.5",
                                      "nnm+median", "nnm+geomedian"};

WorldOptions robust(std::string_view rule, std::uint64_t parameters = 200) {
  WorldOptions options = calm(6, parameters);
  options.settings.aggregate = rule;
  options.settings.rounds = 4;
  return options;
}

/// Member 2 sends the opposite of its update, many times as large.
void flip(World& world) {
  world.on_trained = [](const std::string& client, const TrainSettings&, std::span<float> update) {
    if (client != "client-2") return;
    for (float& value : update) value *= -50;
  };
}

/// The distance of the last version from the mean of the honest clients' optima.
double distance_from_optimum(World& world) {
  const auto history = History::open(world);
  REQUIRE(history);
  const auto rounds = history->store->summaries().rounds(history->run.id).value();
  REQUIRE_FALSE(rounds.empty());
  return rounds.back().train_loss.value();
}

TEST_CASE(
    "a robust rule gives the same bits in any order of arrival, through kills and power cuts") {
  for (const std::string_view rule : rules) {
    CAPTURE(std::string(rule));
    const WorldOptions options = robust(rule);
    const auto wanted = [&] {
      World world(options);
      flip(world);
      REQUIRE(world.run());
      CHECK(check(world));
      return final_digest(world).value();
    }();
    for (std::uint64_t kill_at = 40; kill_at <= 200; kill_at += or_sanitized(23u, 97u)) {
      CAPTURE(kill_at);
      WorldOptions other = options;
      other.seed = kill_at;
      World world(other);
      flip(world);
      world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
        const bool is_slow = client == fmt::format("client-{}", 1 + kill_at % 6);
        if (!is_up && header.has_offer() && is_slow) world.link_of(client)->slow_down(20);
      };
      world.kill_server_at(kill_at, kill_at % 2 == 0);
      REQUIRE(world.run());
      CHECK(check(world));
      CHECK(final_digest(world).value() == wanted);
    }
  }
}

TEST_CASE("a member that sends the opposite ruins a mean, and no robust rule") {
  const double honest = [] {
    World world(robust("mean"));
    REQUIRE(world.run());
    return distance_from_optimum(world);
  }();
  for (const std::string_view rule : rules) {
    CAPTURE(std::string(rule));
    World world(robust(rule));
    flip(world);
    REQUIRE(world.run());
    CHECK(distance_from_optimum(world) < 3 * honest);
  }
  World world(robust("mean"));
  flip(world);
  REQUIRE(world.run());
  CHECK(distance_from_optimum(world) > 30 * honest);
}

TEST_CASE("what members claim as weight does not move a robust rule") {
  WorldOptions options = robust("median");
  const Digest equal = calm_digest(options);
  options.members[3].part.examples = 1'000'000;
  CHECK(calm_digest(options) == equal);
}

TEST_CASE("robust rules read updates of any codec that they allow, in many blocks") {
  const std::vector<std::string> codecs{"ecuq:4",
                                        "qsgd:8+ef",
                                        "fp16",
                                        "powersgd:2+ef",
                                        "gradzip:1+ef",
                                        "delta+qsgd:8",
                                        "countsketch:3x2000,recovery=own"};
  for (std::size_t i = 0; i < codecs.size(); i += or_sanitized(1u, 3u)) {
    const std::string& codec = codecs[i];
    CAPTURE(codec);
    WorldOptions options = robust("nnm+trimmed:1", 140'000);
    options.settings.codec = codec;
    options.settings.rounds = 2;
    World world(options);
    REQUIRE(world.run());
    const auto checked = check(world);
    CHECK(checked);
  }
  for (const char* const codec : {"topk:0.1+ef", "delta+topk:0.3"}) {
    CAPTURE(std::string(codec));
    WorldOptions options = robust("multikrum:1,4", 140'000);
    options.settings.codec = codec;
    options.settings.rounds = 2;
    World world(options);
    REQUIRE(world.run());
    CHECK(check(world));
  }
}

TEST_CASE("with a robust rule the step is still the strategy's, and the downlink may be coded") {
  for (const char* const strategy : {"fedavgm:lr=0.5", "fedyogi:lr=0.02", "ditto:lambda=0.5"}) {
    for (const char* const rule : {"geomedian", "centered-clip:0.3"}) {
      CAPTURE(std::string(strategy));
      CAPTURE(std::string(rule));
      WorldOptions options = robust(rule);
      options.settings.strategy = strategy;
      options.settings.downlink_codec = "qsgd:64";
      options.settings.keep_checkpoints = 1;
      World world(options);
      world.kill_server_at(90, true);
      REQUIRE(world.run());
      CHECK(check(world));
    }
  }
}

}  // namespace
}  // namespace fl::test
