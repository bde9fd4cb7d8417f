// SPDX-License-Identifier: Apache-2.0
// Simulates thousands of federations, each drawn from a seed. Whatever breaks on the way, the run
// must end, each version must follow from the accepted updates, and no acknowledged update may be
// lost or counted twice.
//
//   FL_SIM_SEED=S    runs the seed S only, and prints its trace and logs
//   FL_SIM_SEEDS=N   runs N seeds (default: 250, with sanitizers fewer; ./dev test --all runs
//   2,000)
#include "shared/base/log.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/world/check.hpp"
#include "tests/world/scenario.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace fl::test {
namespace {

constexpr std::uint64_t default_seeds = or_sanitized(250, 50);

std::optional<std::uint64_t> number_from(const char* variable) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  return std::strtoull(text, nullptr, 10);
}

struct Ending {
  Digest model;
  Digest trace;
  bool has_lost_tasks = false;
};

/// Whether a client lost a task, and so trained again for another one.
bool has_lost_tasks(World& world) {
  for (Round round = 1; round <= world.options().settings.rounds; ++round)
    if (count(tasks_of(world, round), TaskState::lost) != 0) return true;
  return false;
}

Result<Ending> run_world(const WorldOptions& options) {
  World world(options);
  FL_CHECK(world.run());
  FL_CHECK(check(world));
  FL_TRY(const Digest model, final_digest(world));
  return Ending{model, world.trace(), has_lost_tasks(world)};
}

/// Checks the invariants, for every tenth seed that a second run has the same trace, and for a
/// steady world that the model is the same without troubles.
Result<void> run_seed(std::uint64_t seed, bool is_verbose) {
  WorldOptions options = draw_options(seed);
  options.is_verbose = is_verbose;
  FL_TRY(const Ending ending, run_world(options));
  options.is_verbose = false;
  if (seed % 10 == 0) {
    FL_TRY(const Ending again, run_world(options));
    if (again.trace != ending.trace)
      return Error(Errc::internal, "a second run of the same seed had a different trace");
  }
  if (options.is_steady() && !options.troubles.empty()) {
    const auto troubles = std::exchange(options.troubles, {});
    FL_TRY(const Ending undisturbed, run_world(options));
    // A lie may break the protocol. Then its client loses the task, and the update for its next
    // task is rounded with other random numbers.
    const bool has_lied = std::ranges::count(troubles, Trouble::lie) != 0;
    if (undisturbed.model != ending.model && !(has_lied && ending.has_lost_tasks))
      return Error(Errc::internal, "the last model is different without the troubles");
  }
  return {};
}

TEST_CASE("a federation with random troubles ends with the correct model") {
  const auto one = number_from("FL_SIM_SEED");
  set_log_level(one ? LogLevel::info : LogLevel::off);
  const std::uint64_t first = one.value_or(1);
  const std::uint64_t count = one ? 1 : number_from("FL_SIM_SEEDS").value_or(default_seeds);
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const auto right = run_seed(seed, one.has_value());
    INFO("replay: ./dev sim ", seed);
    CHECK(right);
  }
}

}  // namespace
}  // namespace fl::test
