// SPDX-License-Identifier: Apache-2.0
// Updates of very different magnitudes: the sums hold them exactly, and --norm-limit decides which
// of them count.
#include "tests/support/sanitized.hpp"
#include "tests/world/scenario.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fl::test {
namespace {

TEST_CASE("without a limit, updates of any magnitude count, exactly") {
  for (const char* const mode : {"sync", "async:buffer=2", "sync:late=1"}) {
    CAPTURE(std::string(mode));
    for (std::uint64_t kill_at = 0; kill_at <= 120; kill_at += or_sanitized(17u, 61u)) {
      CAPTURE(kill_at);
      WorldOptions options = calm(3);
      options.settings.mode = mode;
      options.settings.norm_limit = 0;
      // The client announces the update again after limits::later_pause; the others go on
      // meanwhile.
      options.settings.rounds = mode == std::string_view("async:buffer=2") ? 60 : 5;
      World world(options);
      bool is_done = false;
      world.on_trained = [&](const std::string& client, const TrainSettings& settings,
                             std::span<float> update) {
        if (client != "client-2" || settings.round < 2 || std::exchange(is_done, true)) return;
        for (float& value : update) value *= 1e20F;
        if (kill_at > 0) world.kill_server_at(kill_at, kill_at % 2 == 0);
      };
      REQUIRE(world.run());
      CHECK(check(world));
      std::set<std::uint32_t> large;
      for (Round round = 1; round <= options.settings.rounds; ++round) {
        for (const auto& task : tasks_of(world, round)) {
          CHECK(task.state != TaskState::refused);
          if (task.state == TaskState::accepted && task.norm > 1e15) large.insert(round);
        }
      }
      CHECK_FALSE(large.empty());
    }
  }
}

TEST_CASE("an update much larger than the others is refused with the figures, whoever is first") {
  for (const char* const mode : {"sync", "async:buffer=3", "sync:late=1"}) {
    for (const Round from : {2u, 4u}) {
      for (const char* const slow : {"client-1", "client-2", "client-3"}) {
        CAPTURE(std::string(mode));
        CAPTURE(from);
        CAPTURE(std::string(slow));
        WorldOptions options = calm(4);
        options.settings.mode = mode;
        options.settings.min_clients = 3;
        options.settings.rounds = 8;
        World world(options);
        world.on_frame = [&](const std::string& client, bool is_up, const wire::Header& header) {
          if (!is_up && header.has_offer() && client == slow) world.link_of(client)->slow_down(20);
        };
        world.on_trained = [&](const std::string& client, const TrainSettings& settings,
                               std::span<float> update) {
          if (client != "client-2" || settings.round < from) return;
          for (float& value : update) value *= 1e8F;
        };
        REQUIRE(world.run());
        CHECK(check(world));
        int refused = 0;
        for (Round round = 1; round <= 8; ++round) {
          for (const auto& task : tasks_of(world, round)) {
            const bool is_large = task.client == "client-2" && task.round >= from;
            if (task.state == TaskState::refused) {
              CHECK(is_large);
              CHECK(task.reason.find("its norm is ") != std::string::npos);
              CHECK(task.reason.find("times the median") != std::string::npos);
              ++refused;
            }
            if (task.state == TaskState::accepted) CHECK(task.norm < 1e6);
          }
        }
        // A slow client in an asynchronous run may send nothing of the last versions.
        if (mode != std::string_view("async:buffer=3") || slow != std::string_view("client-2"))
          CHECK(refused > 0);
      }
    }
  }
}

TEST_CASE("when a late round loses its quorum to the norm limit, others are asked at once") {
  WorldOptions options = calm(7);
  options.settings.min_clients = 4;
  options.settings.clients_per_round = 5;
  options.settings.over_select = 1.2;
  options.settings.deadline_s = 10;
  options.settings.rounds = 3;
  World world(options);
  std::vector<TimePoint> offers;  // When a client was asked in round 2.
  world.on_frame = [&](const std::string&, bool, const wire::Header& header) {
    if (header.offer().round() == 2) offers.push_back(Clock::now());
  };
  int trained = 0;
  world.on_trained = [&](const std::string& client, const TrainSettings& settings,
                         std::span<float> update) {
    if (settings.round != 2) return;
    ++trained;
    if (trained == 1)
      for (float& value : update) value *= 1e8F;
    if (trained == 2 || trained == 3) world.link_of(client)->fall_silent();
  };
  REQUIRE(world.run());
  CHECK(check(world));
  const auto tasks = tasks_of(world, 2);
  CHECK(count(tasks, TaskState::accepted) == 4);
  CHECK(count(tasks, TaskState::refused) == 1);
  REQUIRE(offers.size() == 7);
  CHECK(offers.back() - offers.front() > std::chrono::seconds(9));
  CHECK(offers.back() - offers.front() < std::chrono::seconds(11));  // Not another deadline later.
}

TEST_CASE("updates that all become much larger count: they are judged by their own round") {
  for (const char* const mode : {"sync", "async:buffer=3", "async:buffer=1", "sync:late=1"}) {
    for (const std::uint32_t clients : {1u, 2u, 3u, 5u}) {
      CAPTURE(std::string(mode));
      CAPTURE(clients);
      WorldOptions options = calm(clients);
      options.settings.mode = mode;
      options.settings.min_clients = std::min(clients, 2u);
      options.settings.rounds = 40;
      World world(options);
      world.on_trained = [&](const std::string&, const TrainSettings& settings,
                             std::span<float> update) {
        if (settings.round >= 20) return;
        for (float& value : update) value *= 1e-8F;
      };
      REQUIRE(world.run());
      CHECK(check(world));
      double largest = 0;
      for (Round round = 20; round <= 40; ++round) {
        for (const auto& task : tasks_of(world, round)) {
          if (task.state == TaskState::accepted) largest = std::max(largest, task.norm);
        }
      }
      CHECK(largest > 1e-3);
    }
  }
}

TEST_CASE("an update that waits for its judgement is judged after the server's death, too") {
  int refused = 0;
  for (std::uint64_t kill_at = 60; kill_at <= 160; kill_at += or_sanitized(5u, 23u)) {
    CAPTURE(kill_at);
    WorldOptions options = calm(3);
    options.settings.rounds = 4;
    options.settings.min_clients = 2;
    options.sessions_first = 3;
    World world(options);
    world.on_trained = [&](const std::string& client, const TrainSettings& settings,
                           std::span<float> update) {
      if (client != "client-2" || settings.round < 2) return;
      for (float& value : update) value *= 1e8F;
    };
    world.kill_server_at(kill_at, kill_at % 2 == 0);
    REQUIRE(world.run());
    CHECK(check(world));
    for (Round round = 2; round <= 4; ++round) {
      for (const auto& task : tasks_of(world, round)) {
        if (task.client != "client-2") continue;
        CHECK(task.state != TaskState::accepted);
        refused += task.state == TaskState::refused ? 1 : 0;
      }
    }
  }
  CHECK(refused > 0);
}

TEST_CASE("an update is taken back although the disk is full, or too many files are open") {
  enum class Lack { none, room, files };
  std::optional<Digest> wanted;
  for (const char* const codec : {"none", "delta+qsgd:8"}) {
    wanted.reset();
    for (const Lack lack : {Lack::none, Lack::room, Lack::files}) {
      CAPTURE(std::string(codec));
      CAPTURE(static_cast<int>(lack));
      WorldOptions options = calm(4);
      options.settings.codec = codec;
      options.settings.rounds = 5;
      options.settings.min_clients = 3;
      options.sessions_first = 4;
      // So little too large that all sums keep their unit: what stays in them is not added again.
      options.settings.norm_limit = 4;
      World world(options);
      world.server_disk().copy_on_write(true);
      world.on_trained = [](const std::string& client, const TrainSettings& settings,
                            std::span<float> update) {
        if (client != "client-2" || settings.round != 3) return;
        for (float& value : update) value *= 6;
      };
      MemFiles& disk = world.server_disk();
      int verdicts = 0;
      world.on_frame = [&](const std::string&, bool is_up, const wire::Header& header) {
        // The third of the third round: now it closes, and client-2 is judged.
        if (is_up || !header.has_verdict() || ++verdicts != 4 + 4 + 3 || lack == Lack::none) return;
        if (lack == Lack::room) disk.space_limit(disk.bytes_used());
        if (lack == Lack::files) disk.files_limit(0);
        world.spawn([](MemFiles& full) -> Awaitable<void> {
          co_await sleep_for(std::chrono::seconds(5));
          full.space_limit(MemFiles::no_limit);
          full.files_limit(std::numeric_limits<int>::max());
        }(disk));
      };
      REQUIRE(world.run());
      CHECK(check(world));
      CHECK(world.server_starts() == 1);
      CHECK(verdicts >= 4 * 5);
      CHECK(count(tasks_of(world, 3), TaskState::refused) == 1);
      if (!wanted) wanted = final_digest(world).value();
      CHECK(final_digest(world).value() == *wanted);
      CHECK((world.elapsed() >= std::chrono::seconds(5)) == (lack != Lack::none));
    }
  }
}

}  // namespace
}  // namespace fl::test
