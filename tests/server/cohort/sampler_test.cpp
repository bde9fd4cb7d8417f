// SPDX-License-Identifier: Apache-2.0
// Every sampler picks distinct clients, is deterministic, and prefers the clients that it should.
#include "server/cohort/sampler.hpp"
#include "tests/support/guide_table.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::server;
namespace {

std::vector<Candidate> crowd(std::size_t n) {
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < n; ++i) candidates.push_back({fmt::format("c{:03}", i), 100, {}});
  return candidates;
}

/// Returns how often each candidate is picked in this many rounds.
std::map<std::size_t, int> tally(const Sampler& sampler, const std::vector<Candidate>& candidates,
                                 std::size_t count, Round rounds) {
  std::map<std::size_t, int> times;
  for (Round round = 1; round <= rounds; ++round) {
    for (const std::size_t i : sampler.pick(candidates, count, 7, round, 0)) ++times[i];
  }
  return times;
}

TEST_CASE("every sampler picks the requested number of distinct clients, the same each time") {
  auto candidates = crowd(20);
  for (std::size_t i = 0; i < 12; ++i)
    candidates[i].history = {static_cast<Round>(1 + i % 4), 0.5 + static_cast<double>(i), 3.0};
  std::vector<std::string> specs{"power-of-choice:d=3", "oort:explore=1"};
  for (const SamplerRow& row : sampler_rows()) specs.emplace_back(row.name);
  for (const std::string& spec : specs) {
    CAPTURE(spec);
    const Sampler sampler = parse_sampler(spec).value();
    for (const std::size_t count : {0, 1, 7, 19, 20}) {
      const auto picked = sampler.pick(candidates, count, 7, 5, 0);
      CHECK(picked.size() == count);
      CHECK(std::set(picked.begin(), picked.end()).size() == count);
      CHECK(std::ranges::all_of(picked, [](std::size_t i) { return i < 20; }));
      CHECK(picked == sampler.pick(candidates, count, 7, 5, 0));
    }
  }
}

TEST_CASE("uniform gives all clients the same chance; examples weighs them by examples") {
  auto candidates = crowd(10);
  for (std::size_t i = 0; i < 5; ++i) candidates[i].examples = 300;
  // 3,000 picks: 300 each, with a standard deviation of 15.
  for (const auto& [i, times] : tally(parse_sampler("uniform").value(), candidates, 3, 1000))
    CHECK(std::abs(times - 300) < 80);
  // One pick: a client with three times the examples is picked three times as often.
  int large = 0;
  for (const auto& [i, times] : tally(parse_sampler("examples").value(), candidates, 1, 4000))
    large += i < 5 ? times : 0;
  CHECK(std::abs(large - 3000) < 140);  // 5 standard deviations.
}

TEST_CASE("round-robin picks the clients that have waited longest") {
  auto candidates = crowd(5);
  const Sampler sampler = parse_sampler("round-robin").value();
  std::vector<std::size_t> asked;
  for (Round round = 1; round <= 5; ++round) {
    for (const std::size_t i : sampler.pick(candidates, 2, 7, round, 0)) {
      asked.push_back(i);
      candidates[i].history.last_round = round;
    }
  }
  // In the last round 4 and 0 have waited equally long.
  CHECK(asked == std::vector<std::size_t>{0, 1, 2, 3, 4, 0, 1, 2, 3, 0});
}

TEST_CASE("power-of-choice picks new clients first, then those with the highest loss") {
  auto candidates = crowd(6);
  for (std::size_t i = 0; i < 5; ++i)
    candidates[i].history = {1, static_cast<double>(i), 1.0};  // The sixth is new.
  const Sampler all = parse_sampler("power-of-choice:d=6").value();
  CHECK(all.pick(candidates, 3, 7, 2, 0) == std::vector<std::size_t>{5, 4, 3});
  // A client that was asked without result is no longer new, but it is picked again some time.
  candidates[5].history.last_round = 1;
  const auto picked = all.pick(candidates, 6, 7, 2, 0);
  const auto place = std::ranges::find(picked, std::size_t{5}) - picked.begin();
  CHECK((place == 2 || place == 3));
  // With a smaller d other clients are picked, too.
  CHECK(tally(parse_sampler("power-of-choice:d=2").value(), candidates, 1, 300).size() >= 4);
}

TEST_CASE("oort weighs loss against slowness, and tries new clients") {
  auto candidates = crowd(8);
  for (std::size_t i = 0; i < 6; ++i)
    candidates[i].history = {3, 1.0 + 0.1 * static_cast<double>(i), 10.0};
  candidates[5].history.seconds = 1000;  // It has the highest loss, but is a hundred times slower.
  const auto picked = parse_sampler("oort:explore=0.25").value().pick(candidates, 4, 7, 4, 0);
  const std::set set(picked.begin(), picked.end());
  CHECK(set.contains(4));
  CHECK(set.contains(3));
  CHECK_FALSE(set.contains(5));
  CHECK(set.contains(6) + set.contains(7) == 1);
  // If all clients are needed, the slow one is picked, too.
  CHECK(parse_sampler("oort").value().pick(candidates, 8, 7, 4, 0).size() == 8);
}

TEST_CASE("oort explores the given share on average; a client asked without result is not new") {
  auto candidates = crowd(10);
  for (std::size_t i = 0; i < 5; ++i) candidates[i].history = {3, 1.0, 10.0};
  candidates[5].history.last_round = 3;  // Asked, without an answer.
  const auto times = tally(parse_sampler("oort:explore=0.3").value(), candidates, 1, 2000);
  int fresh = 0;
  for (const auto& [i, n] : times) fresh += i > 5 ? n : 0;
  CHECK(std::abs(fresh - 600) < 103);  // 5 standard deviations.
  CHECK_FALSE(times.contains(5));
}

TEST_CASE(
    "a client that claims an impossible loss, or very many examples, is not worth all others") {
  auto candidates = crowd(10);
  for (Candidate& candidate : candidates) candidate.history = {3, 1.0, 10.0};
  candidates[0].history.loss = 1.7e308;
  candidates[0].history.seconds = 1000;  // It is slow, too: it counts a 10,000th.
  const Sampler oort = parse_sampler("oort:explore=0").value();
  const auto picked = oort.pick(candidates, 9, 7, 4, 0);
  CHECK(std::ranges::find(picked, 0u) == picked.end());
  auto many = crowd(10);
  for (Candidate& candidate : many) candidate.examples_max = 1000;
  many[0].examples = 1ull << 40;
  int times = 0;
  for (const auto& [i, n] : tally(parse_sampler("examples").value(), many, 1, 2000))
    times += i == 0 ? n : 0;
  CHECK(std::abs(times - 1053) < 112);  // 10 of 19; 5 standard deviations.
}

TEST_CASE("each sampler has a name of its own, is read by it, and is in the guide") {
  std::set<std::string> told;
  for (const Cells& cells : guide_table("guide/choose-a-method.md", "| `--sampling` |"))
    for (const std::string& spec : quoted_in(cells.at(0)))
      told.insert(spec.substr(0, spec.find(':')));
  std::set<std::string> names;
  for (const SamplerRow& row : sampler_rows()) {
    CAPTURE(row.name);
    CHECK(names.insert(std::string(row.name)).second);
    CHECK(row.usage.starts_with(row.name));
    CHECK(parse_sampler(row.name).value().row == &row);
    CHECK((row.read == nullptr) == (row.usage == row.name));
  }
  CHECK(told == names);
}

TEST_CASE("the error for an unknown sampling lists the samplings") {
  CHECK(parse_sampler("random").error().message().find("power-of-choice or oort") !=
        std::string::npos);
  CHECK_FALSE(parse_sampler("power-of-choice:d=0"));
  CHECK_FALSE(parse_sampler("oort:quantile=2"));
  CHECK_FALSE(parse_sampler("uniform:d=2"));
}

}  // namespace
}  // namespace fl::test
