// SPDX-License-Identifier: Apache-2.0
// Which updates are too large to count, by their norms alone.
#include "server/round/norm_limit.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

using namespace fl;
using namespace fl::server;

namespace {

using Norms = std::vector<double>;
using ByClient = std::map<std::string, double>;

/// The norms of a round with these updates, and of other clients before.
struct JudgedRound {
  ByClient past;
  std::optional<RoundNorms> norms;

  JudgedRound(const Norms& cohort, const Norms& before) {
    for (std::size_t i = 0; i < before.size(); ++i) past["past-" + std::to_string(i)] = before[i];
    norms.emplace(past, 10);
    for (std::size_t i = 0; i < cohort.size(); ++i)
      norms->add("client-" + std::to_string(i), cohort[i]);
  }
};

NormVerdict of(double norm, const Norms& cohort, const Norms& past) {
  return JudgedRound(cohort, past).norms->judge(norm).verdict;
}

NormVerdict at_end(double norm, const Norms& cohort, const Norms& past) {
  return JudgedRound(cohort, past).norms->judge_at_end(norm).verdict;
}

/// The definition, by lists of all norms.
double plain_median(const ByClient& cohort, const ByClient& past, bool at_end) {
  Norms all;
  for (const auto& [client, norm] : cohort) all.push_back(norm);
  if (!at_end || all.size() < norms_to_judge_min) {
    for (const auto& [client, norm] : past) {
      if (!cohort.contains(client)) all.push_back(norm);
    }
  }
  std::ranges::sort(all);
  return all.size() < norms_to_judge_min ? 0 : all[all.size() / 2];
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
  CHECK(JudgedRound({99, 1, 3, 4}, {}).norms->judge_at_end(99).median == 4);
  CHECK(JudgedRound({99, 1, 3}, {}).norms->judge_at_end(99).median == 3);
  CHECK(at_end(99, {99, 0, 0}, {}) == NormVerdict::fits);
  CHECK(of(99, {99, 0, 0}, {}) == NormVerdict::fits);
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(at_end(infinity, {infinity, 1, 1}, {}) == NormVerdict::too_large);
}

TEST_CASE("at the end of a round all are judged by the same median, until it is open again") {
  JudgedRound round({99, 98, 3, 2, 1}, {1, 1});
  CHECK(round.norms->judge_at_end(99).median == 3);
  round.norms->refuse("client-0");
  CHECK(round.norms->judge_at_end(98).median == 3);
  round.norms->refuse("client-1");
  CHECK(round.past.at("client-1") == 98);
  CHECK(round.norms->judge_at_end(3).median == 3);
  round.norms->reopen();
  CHECK(round.norms->judge(2).median == 2);         // The median of 1, 1, 1, 2, 3, 98, 99.
  CHECK(round.norms->judge_at_end(2).median == 2);  // The median of 1, 2, 3.
}

TEST_CASE("the median is that of lists of all norms, whatever comes and is refused") {
  std::mt19937_64 random(11);
  for (int run = 0; run < 200; ++run) {
    ByClient past;
    ByClient cohort;
    const auto norm = [&] { return static_cast<double>(random() % 20); };
    for (std::uint64_t i = random() % 8; i > 0; --i)
      past["c" + std::to_string(random() % 9)] = norm();
    RoundNorms norms(past, 10);
    for (int step = 0; step < 30; ++step) {
      const std::string client = "c" + std::to_string(random() % 9);
      if (!cohort.contains(client)) {
        cohort[client] = norm();
        norms.add(client, cohort[client]);
      } else if (random() % 2 == 0) {
        norms.refuse(client);
        CHECK(past.at(client) == cohort.at(client));
        cohort.erase(client);
      }
      CHECK(norms.judge(1).median == plain_median(cohort, past, false));
      norms.reopen();
      CHECK(norms.judge_at_end(1).median == plain_median(cohort, past, true));
      norms.reopen();
    }
  }
}
