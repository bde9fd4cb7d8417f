// SPDX-License-Identifier: Apache-2.0
// Helpers of the scripted scenarios.
#pragma once

#include "shared/base/log.hpp"
#include "tests/support/print_result.hpp"
#include "tests/world/check.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

namespace fl::test {

/// Two rounds of `trainers` clients with 100 examples each. Nothing goes wrong.
inline WorldOptions calm(std::uint32_t trainers, std::uint64_t parameters = 200) {
  set_log_level(LogLevel::off);
  WorldOptions options;
  options.problem = ToyProblem::make(parameters, 7);
  options.settings.model = options.problem.model;
  options.settings.rounds = 2;
  options.settings.min_clients = trainers;
  options.settings.deadline_s = 0;
  options.settings.local_steps = 2;
  options.settings.lr = 0.3;
  for (std::uint32_t i = 0; i < trainers; ++i) {
    options.members.push_back({fmt::format("client-{}", i + 1), {i, 100, 0}, false});
  }
  return options;
}

/// The number of parameters of a model whose updates take several chunks.
inline constexpr std::uint64_t large = 300'000;

/// The digest of the last version if nothing goes wrong.
inline Digest calm_digest(const WorldOptions& options) {
  World world(options);
  REQUIRE(world.run());
  return final_digest(world).value();
}

/// Runs the federation again and again, and kills its server at the n-th change of its disk: n is
/// 1, then greater by `step` each time, until a run ends without so many changes. Each run must end
/// with the digest of one in which nothing goes wrong; `look` sees its world after that. Returns
/// the next n, which nothing was tried with.
template <class Look>
std::uint64_t die_at_each_change(WorldOptions options, bool is_power_loss, std::uint64_t step,
                                 const Look& look) {
  const Digest expected = calm_digest(options);
  std::uint64_t n = 1;
  for (bool has_died = true; has_died; n += step) {
    CAPTURE(n);
    options.seed = n;
    World world(options);
    // There is no server yet: the first client that connects has one.
    bool is_planned = false;
    world.on_connect = [&](const std::string&, Line&, Line&) {
      if (!std::exchange(is_planned, true)) world.kill_server_at(n, is_power_loss);
      return true;
    };
    REQUIRE(world.run());
    CHECK(check(world));
    CHECK(final_digest(world).value() == expected);
    look(world);
    has_died = world.server_starts() > 1;
  }
  return n;
}
inline std::uint64_t die_at_each_change(const WorldOptions& options, bool is_power_loss,
                                        std::uint64_t step) {
  return die_at_each_change(options, is_power_loss, step, [](World&) {});
}

inline std::vector<TaskRecord> tasks_of(World& world, Round round) {
  const auto history = History::open(world);
  REQUIRE(history);
  return history->store->rounds().tasks(history->run.id, round).value();
}

inline std::size_t count(const std::vector<TaskRecord>& tasks, TaskState state) {
  return static_cast<std::size_t>(
      std::count_if(tasks.begin(), tasks.end(), [&](const auto& t) { return t.state == state; }));
}

/// Records the headers that one client and the server send to each other, in order.
struct Talk {
  std::vector<wire::Header> up;
  std::vector<wire::Header> down;

  void listen(World& world, std::string name) {
    world.on_frame = [this, name = std::move(name)](const std::string& client, bool is_up,
                                                    const wire::Header& header) {
      if (client == name) (is_up ? up : down).push_back(header);
    };
  }
  template <class Is>
  static std::vector<wire::Header> only(const std::vector<wire::Header>& all, Is is) {
    std::vector<wire::Header> some;
    std::copy_if(all.begin(), all.end(), std::back_inserter(some), is);
    return some;
  }
  [[nodiscard]] std::vector<wire::Header> byes() const {
    return only(down, [](const wire::Header& h) { return h.has_bye(); });
  }
  [[nodiscard]] std::size_t connections() const {
    return only(up, [](const wire::Header& h) { return h.has_hello(); }).size();
  }
};

}  // namespace fl::test
