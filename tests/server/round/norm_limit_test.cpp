// SPDX-License-Identifier: Apache-2.0
// Which updates are too large to count, by their norms alone.
#include "server/round/norm_limit.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <vector>

using namespace fl;

namespace {

using Norms = std::vector<double>;

NormVerdict of(double norm, const Norms& cohort, const Norms& past) {
  return judge_norm(norm, cohort, past, 10).verdict;
}

NormVerdict at_end(double norm, const Norms& cohort, const Norms& past) {
  return judge_norm_at_end(norm, cohort, past, 10).verdict;
}

}  // namespace

TEST_CASE("an update waits if it is too large beside two others or more") {
  CHECK(of(1e9, {1e9}, {}) == NormVerdict::fits);
  CHECK(of(1e9, {1e9, 1}, {}) == NormVerdict::fits);
  CHECK(of(1e9, {1e9, 1, 1}, {}) == NormVerdict::waits);
  CHECK(of(1, {1, 2, 3}, {}) == NormVerdict::fits);
  CHECK(of(1, {1}, {2, 3}) == NormVerdict::fits);
  CHECK(of(20, {20}, {2, 3}) == NormVerdict::fits);
  CHECK(of(31, {31}, {2, 3}) == NormVerdict::waits);
  CHECK(of(31, {31, 1, 1}, {2, 3}) == NormVerdict::waits);
}

TEST_CASE("when the round closes an update is judged by its cohort, or else with those before") {
  CHECK(at_end(30, {30, 1, 3}, {}) == NormVerdict::fits);
  CHECK(at_end(31, {31, 1, 3}, {}) == NormVerdict::too_large);
  // All have become large.
  CHECK(at_end(1e9, {1e9, 2e9, 3e9}, {1, 1, 1, 1, 1}) == NormVerdict::fits);
  CHECK(at_end(1e9, {1e9, 2e9}, {1}) == NormVerdict::fits);
  CHECK(at_end(1e9, {1e9, 2e9}, {1, 1, 1}) == NormVerdict::too_large);
  // There is nothing to compare with.
  CHECK(at_end(1e9, {1e9, 1}, {}) == NormVerdict::fits);
  CHECK(at_end(1e9, {1e9}, {1}) == NormVerdict::fits);
}

TEST_CASE("the verdict has the median that it comes from; a median of 0 judges nobody") {
  CHECK(judge_norm_at_end(99, {{99, 1, 3, 4}}, {}, 10).median == 4);
  CHECK(judge_norm_at_end(99, {{99, 1, 3}}, {}, 10).median == 3);
  CHECK(at_end(99, {99, 0, 0}, {}) == NormVerdict::fits);
  CHECK(of(99, {99, 0, 0}, {}) == NormVerdict::fits);
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(at_end(infinity, {infinity, 1, 1}, {}) == NormVerdict::too_large);
}
