// SPDX-License-Identifier: Apache-2.0
// Random choices of a whole federation: seeds differ by round, client and version, so that what
// codecs lose in one update is independent of what they lose in another, and the mean is better.
#include "shared/codec/payload/reader.hpp"
#include "shared/codec/spec/parser.hpp"
#include "tests/support/distortion.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/world/scenario.hpp"

#include <set>

namespace fl::test {

using namespace fl::codec;
namespace {

TEST_CASE(
    "each client gets another training seed in each round, and the shared seed of the round") {
  WorldOptions options = calm(3);
  options.settings.rounds = 4;
  World world(options);
  std::map<Round, std::map<std::string, std::uint64_t>> own;
  std::map<Round, std::set<std::uint64_t>> shared;
  world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
    if (is_up || !header.has_offer()) return;
    own[header.offer().round()][client] = header.offer().seed();
    shared[header.offer().round()].insert(header.offer().shared_seed());
  };
  REQUIRE(world.run());
  std::set<std::uint64_t> seeds;
  std::set<std::uint64_t> of_rounds;
  for (const auto& [round, clients] : own) {
    for (const auto& [client, seed] : clients) seeds.insert(seed);
    CHECK(shared[round].size() == 1);
    of_rounds.insert(*shared[round].begin());
  }
  CHECK(own.size() == 4);
  CHECK(seeds.size() == 4 * 3);
  CHECK(of_rounds.size() == 4);
  for (const std::uint64_t seed : of_rounds) CHECK_FALSE(seeds.contains(seed));
}

/// The decoded uploads of a round, by client.
std::map<std::string, std::vector<float>> decoded_uploads(World& world, Round round) {
  std::map<std::string, std::vector<float>> out;
  const Layout& layout = world.options().problem.layout;
  for (const TaskRecord& task : tasks_of(world, round)) {
    REQUIRE(task.state == TaskState::accepted);
    const std::string& file = world.spooled().at(task.spool_file).back();
    SpanSource source(bytes_of(std::string_view(file)));
    auto reader = PayloadReader::open(source, task.update_bytes, layout).value();
    std::vector<float>& values = out[task.client];
    values.resize(layout.elements());
    reader.decode_all(values).value();
  }
  return out;
}

/// A federation whose clients all train the same update in all rounds.
struct EqualUpdates {
  std::vector<float> update;
  World world;

  explicit EqualUpdates(const WorldOptions& options)
      : update(options.problem.point(77)), world(options) {
    world.on_trained = [this](const std::string&, const TrainSettings&, std::span<float> trained) {
      std::ranges::copy(update, trained.begin());
    };
    REQUIRE(world.run());
  }
};

TEST_CASE("equal updates of N clients get independent errors: that of the mean is an Nth") {
  constexpr std::uint32_t clients = 16;
  for (const char* const spec : {"qsgd:1", "terngrad", "randk:0.3,dense_below=0"}) {
    CAPTURE(std::string(spec));
    WorldOptions options = calm(clients, 2000);
    options.settings.codec = spec;
    EqualUpdates equal(options);
    std::set<std::vector<float>> seen;
    for (const Round round : {1u, 2u}) {
      const auto uploads = decoded_uploads(equal.world, round);
      REQUIRE(uploads.size() == clients);
      std::vector<float> mean(equal.update.size());
      double one = 0;
      for (const auto& [client, values] : uploads) {
        seen.insert(values);
        one += testing::nmse(equal.update, values) / clients;
        for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += values[i] / clients;
      }
      CHECK(one > 0.01);
      CHECK(testing::nmse(equal.update, mean) * clients == doctest::Approx(one).epsilon(0.25));
    }
    CHECK(seen.size() == 2 * clients);
  }
}

TEST_CASE("the clients of a round share what their codes must share, and only that round's do") {
  WorldOptions options = calm(3);
  options.settings.codec = "gradzip:1";
  options.settings.rounds = 3;
  EqualUpdates equal(options);
  std::set<std::uint64_t> keys;
  for (const Round round : {1u, 2u, 3u}) {
    std::set<std::uint64_t> of_round;
    for (const TaskRecord& task : tasks_of(equal.world, round)) {
      const std::string& file = equal.world.spooled().at(task.spool_file).back();
      const Bytes bytes = bytes_of(std::string_view(file));
      const BlockMap map(options.problem.layout, load<std::uint32_t>(bytes, 4));
      const std::size_t block = payload_header_bytes + 4 * (map.blocks() - map.bare_blocks());
      REQUIRE(static_cast<BlockFormat>(bytes[block]) == BlockFormat::gradzip);
      of_round.insert(load<std::uint64_t>(bytes, block + 2));
    }
    CHECK(of_round.size() == 1);
    keys.merge(of_round);
  }
  CHECK(keys.size() == 3);
}

/// The steps of lanes in the rows of all versions.
std::vector<std::string> lane_steps_of(World& world) {
  const auto history = History::open(world);
  REQUIRE(history);
  std::vector<std::string> steps;
  for (const auto& version : history->store->rounds().checkpoints(history->run.id).value())
    steps.push_back(version.lane_steps);
  return steps;
}

TEST_CASE("the steps of lanes are the same for a round's clients, and for a server that died") {
  WorldOptions options = calm(3, 3000);
  options.settings.codec = "lanes:8+ef";
  options.settings.rounds = 4;
  options.settings.keep_checkpoints = 10;
  std::map<Round, std::set<std::string>> offered;
  std::vector<std::string> steps;
  {
    World world(options);
    world.on_frame = [&offered](const std::string&, bool is_up, const wire::Header& header) {
      if (!is_up && header.has_offer())
        offered[header.offer().round()].insert(header.offer().lane_steps());
    };
    REQUIRE(world.run());
    CHECK(check(world));
    steps = lane_steps_of(world);
  }
  REQUIRE(steps.size() == 5);
  CHECK(steps[0].empty());  // Nobody knows the values of the first round.
  const Layout& layout = options.problem.layout;
  const auto bits = parse_codec("lanes:8+ef").value()->lane_bits(layout);
  for (const Round round : {1u, 2u, 3u, 4u}) {
    CHECK(offered[round] == std::set{steps[base_of(round)]});
    const auto next = parse_lane_steps(steps[round], layout.tensors().size()).value();
    for (std::size_t t = 0; t < bits.size(); ++t) CHECK(next[t].is_set() == (bits[t] > 0));
  }
  CHECK(std::set(steps.begin(), steps.end()).size() > 3);
  for (const bool is_power_loss : {false, true})
    die_at_each_change(options, is_power_loss, test::or_sanitized(5, 23),
                       [&](World& died) { CHECK(lane_steps_of(died) == steps); });
}

TEST_CASE("the steps of different versions are coded with different seeds") {
  WorldOptions options = calm(2);
  options.settings.downlink_codec = "randk:0.3,dense_below=0";
  options.settings.rounds = 4;
  options.settings.keep_checkpoints = 10;
  EqualUpdates equal(options);
  const auto history = History::open(equal.world);
  REQUIRE(history);
  std::set<std::uint64_t> keys;
  for (const auto& version : history->store->rounds().checkpoints(history->run.id).value()) {
    if (version.version == 0) continue;
    const std::string file =
        peek(equal.world.server_disk(), "/state/checkpoints/" + version.delta_file);
    const Bytes bytes = bytes_of(std::string_view(file));
    const BlockMap map(options.problem.layout, load<std::uint32_t>(bytes, 4));
    const std::size_t block = payload_header_bytes + 4 * (map.blocks() - map.bare_blocks());
    REQUIRE(static_cast<BlockFormat>(bytes[block]) == BlockFormat::randk);
    keys.insert(load<std::uint64_t>(bytes, block + 3));
  }
  CHECK(keys.size() == 4);
}

}  // namespace
}  // namespace fl::test
