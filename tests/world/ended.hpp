// SPDX-License-Identifier: Apache-2.0
// How the run of a world ended, for scenarios of early ends.
#pragma once

#include "tests/world/check.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace fl::test {

struct Ended {
  std::size_t rounds = 0;
  std::string why;  // "" after all its rounds.
  /// The evaluators' answers on one example or more, for all versions.
  std::vector<EvaluationRecord> answers;
};

/// Runs the world to its end.
inline Ended end_of(World& world) {
  REQUIRE(world.run());
  const auto history = History::open(world);
  REQUIRE(history);
  return {.rounds = history->store->summaries().rounds(history->run.id).value().size(),
          .why = history->run.early_end,
          .answers = history->store->measurements().evaluator_answers(history->run.id, 1).value()};
}

/// Two ends of one kind. The answers to a version may come while the next round is open already,
/// so one of the runs may have had a round more.
inline void check_same_end(const Ended& ended, const Ended& expected) {
  CHECK(ended.why == expected.why);
  CHECK(ended.rounds + 1 >= expected.rounds);
  CHECK(ended.rounds <= expected.rounds + 1);
}

}  // namespace fl::test
