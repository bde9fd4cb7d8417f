// SPDX-License-Identifier: Apache-2.0
// Masked runs: they end in the model of a run in the clear, bit for bit, whatever breaks meanwhile.
#include "shared/base/io/text_of_bytes.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/world/scenario.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace fl::test {
namespace {

/// A calm run that can be masked, in the clear.
WorldOptions maskable(std::uint32_t trainers, const std::string& codec = "lanes:8+ef") {
  WorldOptions options = calm(trainers, 2000);
  options.problem.drop_statistics();
  options.settings.codec = codec;
  options.settings.weights = "equal";
  options.settings.rounds = 2;
  options.settings.norm_limit = 0;
  options.settings.keep_checkpoints = 10;
  return options;
}

WorldOptions masked(WorldOptions options) {
  options.settings.secure_aggregation = "on:attempts=3,step-seconds=20";
  return options;
}

/// What all versions are, and the steps of lanes beside them.
std::vector<std::string> versions_of(World& world) {
  const auto history = History::open(world);
  REQUIRE(history);
  std::vector<std::string> all;
  for (const auto& version : history->store->rounds().checkpoints(history->run.id).value())
    all.push_back(version.digest.hex() + " " + to_hex(bytes_of(version.lane_steps)));
  return all;
}

std::vector<std::string> calm_versions(const WorldOptions& options) {
  World world(options);
  REQUIRE(world.run());
  if (options.is_masked()) CHECK(check(world));
  return versions_of(world);
}

TEST_CASE("a masked run ends in the model of one in the clear") {
  for (const std::string codec : {"lanes:8", "lanes:4+ef", "randk:0.3,dense_below=0+lanes:6+ef"}) {
    for (const std::string strategy : {"fedavg", "scaffold", "fedadam", "feddyn"}) {
      CAPTURE(codec);
      CAPTURE(strategy);
      WorldOptions options = maskable(strategy == "fedavg" ? 5 : 3, codec);
      options.settings.strategy = strategy;
      const auto expected = calm_versions(options);
      REQUIRE(expected.size() == 3);
      CHECK(expected[1] != expected[2]);
      CHECK(calm_versions(masked(options)) == expected);
    }
  }
}

TEST_CASE("what a masked server reads is not what its members train, and it reads no figures") {
  const WorldOptions options = masked(maskable(3));
  World world(options);
  std::map<std::string, std::vector<wire::Header>> up;
  world.on_frame = [&up](const std::string& client, bool is_up, const wire::Header& header) {
    if (is_up) up[client].push_back(header);
  };
  REQUIRE(world.run());
  for (const auto& [client, sent] : up) {
    for (const wire::Header& header : sent) {
      CHECK_FALSE(header.has_evaluation());
      if (header.has_ready()) {
        CHECK(header.ready().train_examples() == 1);
        CHECK(header.ready().metrics_size() == 0);
      }
      if (!header.has_begin()) continue;
      wire::UploadBegin rest = header.begin();
      for (const int number : {2, 3, 4, 7, 8, 9, 34})  // What any masked upload has.
        rest.GetReflection()->ClearField(&rest, rest.GetDescriptor()->FindFieldByNumber(number));
      CHECK(rest.ByteSizeLong() == 0);
    }
  }
  // Each word is another random number, though most values of an update are alike.
  std::set<std::string> words;
  std::size_t count = 0;
  for (const auto& [name, contents] : world.spooled()) {
    if (!name.starts_with("task-")) continue;
    // The spool's mark is behind the words.
    for (std::size_t at = 0; at + 8 <= contents.front().size() - 24; at += 8, ++count)
      words.insert(contents.front().substr(at, 8));
  }
  CHECK(count > 1000);
  CHECK(words.size() == count);
}

TEST_CASE("a masked run ends in the same model wherever its server dies") {
  const WorldOptions options = masked(maskable(3));
  const auto expected = calm_versions(options);
  for (const bool is_power_loss : {false, true}) {
    die_at_each_change(options, is_power_loss, or_sanitized(9, 47),
                       [&](World& died) { CHECK(versions_of(died) == expected); });
  }
}

TEST_CASE("a masked run ends in the same model wherever a member dies") {
  const WorldOptions options = masked(maskable(3));
  const auto expected = calm_versions(options);
  for (const bool is_power_loss : {false, true}) {
    bool has_died = true;
    for (std::uint64_t n = 1; has_died; n += or_sanitized(5, 31)) {
      CAPTURE(n);
      CAPTURE(is_power_loss);
      WorldOptions now = options;
      now.seed = n;
      World world(now);
      bool is_planned = false;
      world.on_connect = [&](const std::string& client, Line&, Line&) {
        if (client == "client-2" && !std::exchange(is_planned, true))
          world.kill_client_at(world.clients().at(client), n, is_power_loss);
        return true;
      };
      REQUIRE(world.run());
      CHECK(check(world));
      CHECK(versions_of(world) == expected);
      has_died = world.clients().at("client-2").starts > 1;
    }
  }
}

/// Cuts a member off for ever once it, or the server, has sent it a message of this kind.
void cut_off_after(World& world, const std::string& name, wire::Header::KindCase kind) {
  const auto is_gone = std::make_shared<bool>(false);
  world.on_connect = [name, is_gone](const std::string& client, Line&, Line&) {
    return client != name || !*is_gone;
  };
  world.on_frame = [&world, name, kind, is_gone](const std::string& client, bool,
                                                 const wire::Header& header) {
    if (client != name || *is_gone || header.kind_case() != kind) return;
    *is_gone = true;
    world.kill_client(name, false);
  };
}

TEST_CASE("a member that is gone for ever does not keep the others from their sum") {
  const WorldOptions all = maskable(4);
  WorldOptions others = all;
  others.settings.rounds = 1;
  others.settings.min_clients = 3;
  others.members.pop_back();
  const auto without = calm_versions(others);
  others.members = all.members;
  others.settings.min_clients = 4;  // In the clear all four are waited for.
  const auto with = calm_versions(others);
  REQUIRE(without != with);
  others.settings.min_clients = 3;
  others.sessions_first = 4;
  others.settings.deadline_s = 100;
  using Kind = wire::Header;
  for (const auto kind : {Kind::kOffer, Kind::kSecureKeys, Kind::kSecureCohort, Kind::kSecureShares,
                          Kind::kSecureInbox, Kind::kBegin, Kind::kResume}) {
    CAPTURE(static_cast<int>(kind));
    World world(masked(others));
    cut_off_after(world, "client-4", kind);
    REQUIRE(world.run());
    CHECK(check(world));
    CHECK(versions_of(world) == without);
  }
  // Once its words are here, they count.
  for (const auto kind : {Kind::kSecureSurvivors, Kind::kSecureConsent, Kind::kSecureAsk}) {
    CAPTURE(static_cast<int>(kind));
    World world(masked(others));
    cut_off_after(world, "client-4", kind);
    REQUIRE(world.run());
    CHECK(check(world));
    CHECK(versions_of(world) == with);
  }
}

TEST_CASE("an attempt that fails is made again with the same updates") {
  const WorldOptions options = masked(maskable(3));
  const auto expected = calm_versions(options);
  using Kind = wire::Header;
  for (const auto kind : {Kind::kSecureCohort, Kind::kSecureShares, Kind::kSecureInbox,
                          Kind::kBegin, Kind::kResume}) {
    CAPTURE(static_cast<int>(kind));
    World world(options);
    bool is_cut = false;
    bool is_again = false;
    std::map<std::string, int> trained;
    world.on_trained = [&](const std::string& client, const TrainSettings&, std::span<float>) {
      ++trained[client];
    };
    world.on_connect = [&](const std::string& client, Line&, Line&) {
      return client != "client-3" || !is_cut || is_again;
    };
    world.on_frame = [&](const std::string& client, bool, const wire::Header& header) {
      if (header.has_offer() && header.offer().secure().attempt() == 2) is_again = true;
      if (client != "client-3" || is_cut || header.kind_case() != kind) return;
      is_cut = true;
      world.kill_client(client, false);
    };
    REQUIRE(world.run());
    CHECK(check(world));
    CHECK(is_again);
    CHECK(versions_of(world) == expected);
    CHECK(trained == std::map<std::string, int>{{"client-1", 2}, {"client-2", 2}, {"client-3", 2}});
  }
}

/// Whether the history has an event with this text.
bool reports(World& world, std::string_view text) {
  const auto history = History::open(world);
  REQUIRE(history);
  for (const auto& event : history->store->events().all(history->run.id).value())
    if (event.text.find(text) != event.text.npos) return true;
  return false;
}

TEST_CASE("a survivor that has lost its state is done without where the others are enough") {
  for (const std::uint32_t members : {4u, 3u}) {
    CAPTURE(members);
    WorldOptions options = masked(maskable(members));
    const auto expected = calm_versions(options);
    World world(options);
    bool is_lost = false;
    bool is_away = false;
    bool has_said = false;
    world.on_connect = [&](const std::string& client, Line&, Line&) {
      return client != "client-4" || !is_away || has_said;
    };
    world.on_frame = [&](const std::string& client, bool, const wire::Header& header) {
      if (client == "client-3" && header.has_failed()) has_said = true;
      if (!header.has_secure_survivors()) return;
      // Without it the others are too few, until it has said so.
      if (client == "client-4" && !std::exchange(is_away, true)) world.kill_client(client, false);
      if (client != "client-3" || std::exchange(is_lost, true)) return;
      world.kill_client(client, false);
      world.clients().at(client).disk.remove("/state/attempt.json").value();
    };
    const bool has_ended = world.run().has_value();
    CHECK(is_lost);
    CHECK(reports(world, "client-3 does not open the masked sum that its update is in"));
    if (members == 4) {
      CHECK(has_ended);
      CHECK(versions_of(world) == expected);
    } else {
      CHECK(reports(world, "can't be opened without client-3"));
      CHECK(versions_of(world).size() == 1);
    }
  }
}

TEST_CASE(
    "whatever happens on lines and disks, a masked run ends in the model of a calm one in the "
    "clear") {
  constexpr int kinds = static_cast<int>(Trouble::client_full) + 1;
  for (std::uint64_t seed = 1; seed <= or_sanitized(60, 6); ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const auto below = [&random](std::uint64_t bound) { return random() % bound; };
    WorldOptions options = maskable(
        static_cast<std::uint32_t>(3 + below(4)),
        std::array{"lanes:8+ef", "lanes:5", "randk:0.3,dense_below=0+lanes:8+ef"}[below(3)]);
    options.settings.strategy = std::array{"fedavg", "scaffold", "fedyogi:lr=0.02"}[below(3)];
    options.settings.min_clients = static_cast<std::uint32_t>(options.members.size());
    const auto expected = calm_versions(options);
    options.settings.secure_aggregation = "on:attempts=100,step-seconds=60";
    options.seed = seed;
    const std::uint64_t troubles = 1 + below(5);
    for (std::uint64_t i = 0; i < troubles; ++i)
      options.troubles.push_back(static_cast<Trouble>(below(kinds)));
    World world(options);
    const auto ended = world.run();
    INFO((ended ? "" : ended.error().message()));
    CHECK(ended);
    const auto right = check(world);
    INFO((right ? "" : right.error().message()));
    CHECK(right);
    // After these a client may have lost its task: it trains again, and sends more than this
    // update.
    const bool loses_task = std::ranges::any_of(options.troubles, [](Trouble trouble) {
      return trouble == Trouble::lie || trouble == Trouble::client_disk ||
             trouble == Trouble::client_sync;
    });
    if (!loses_task) CHECK(versions_of(world) == expected);
  }
}

}  // namespace
}  // namespace fl::test
