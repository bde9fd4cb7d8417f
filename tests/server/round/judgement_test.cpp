// SPDX-License-Identifier: Apache-2.0
// What evaluators' answers say of the versions, whatever the order in which they come.
#include "server/round/judgement.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace fl::test {
namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

EvaluationRecord answer(Version version, std::string client, std::uint64_t examples, double value,
                        double loss = 1) {
  EvaluationRecord record;
  record.version = version;
  record.client = std::move(client);
  record.evaluator = true;
  record.examples = examples;
  record.loss = loss;
  record.metrics = {{.name = "score", .value = value}};
  return record;
}

Judgement of(std::vector<EvaluationRecord> answers, MetricKind kind = {.name = "score"}) {
  Judgement judgement(std::move(kind));
  for (const EvaluationRecord& one : answers) judgement.note(one);
  return judgement;
}

TEST_CASE("evaluators of unequal sizes make one value of a version") {
  const auto judgement = of({answer(3, "small", 10, 0.9), answer(3, "large", 990, 0.5)});
  CHECK(judgement.value_of(3).value() == doctest::Approx(0.504));
  CHECK(!judgement.value_of(4));
  SUBCASE("a second answer of one of them replaces its first") {
    auto again = judgement;
    again.note(answer(3, "small", 990, 0.7));
    CHECK(again.value_of(3).value() == doctest::Approx(0.6));
  }
  SUBCASE("a value's own weight counts in place of the examples") {
    auto by_counts = answer(3, "small", 10, 0.9);
    by_counts.metrics[0].weight = 2970;
    CHECK(of({by_counts, answer(3, "large", 990, 0.5)}).value_of(3).value() ==
          doctest::Approx(0.8));
  }
  SUBCASE("a loss counts with its predictions") {
    const MetricKind kind = known_metric(loss_name);
    auto long_texts = answer(3, "small", 10, 0, 4);
    long_texts.predictions = 2970;
    CHECK(of({long_texts, answer(3, "large", 990, 0, 2)}, kind).value_of(3).value() == 3.5);
  }
  SUBCASE("perplexities make that of the mean loss") {
    const MetricKind kind{.name = "score", .lower_is_better = true, .combine = Combine::log_mean};
    CHECK(of({answer(1, "a", 5, 4), answer(1, "b", 5, 16)}, kind).value_of(1).value() ==
          doctest::Approx(8));
  }
}

TEST_CASE("the order of the answers does not change the judgement") {
  std::vector<EvaluationRecord> answers{answer(1, "a", 10, 0.1),         answer(1, "b", 30, 0.5),
                                        answer(2, "a", 10, 0.9),         answer(2, "b", 30, 0.3),
                                        answer(3, "b", 30, 0.8),         answer(4, "a", 10, 0.45),
                                        answer(5, "a", 10, not_a_number)};
  std::vector<std::size_t> order{0, 1, 2, 3, 4, 5, 6};
  for (const bool lower : {false, true}) {
    const MetricKind kind{.name = "score", .lower_is_better = lower};
    do {
      Judgement judgement(kind);
      for (const std::size_t i : order) judgement.note(answers[i]);
      REQUIRE(judgement.newest() == 5);
      REQUIRE(!judgement.value_of(5));
      REQUIRE(!judgement.has_diverged());
      REQUIRE(judgement.value_of(1).value() == doctest::Approx(0.4));
      REQUIRE(judgement.value_of(2).value() == doctest::Approx(0.45));
      REQUIRE(judgement.best() == (lower ? 1 : 3));
    } while (std::ranges::next_permutation(order).found);
  }
}

TEST_CASE("of equal versions the first is the best, and any value is better than none") {
  CHECK(of({answer(4, "a", 1, 0.5), answer(2, "a", 1, 0.5), answer(3, "a", 1, 0.5)}).best() == 2);
  CHECK(of({answer(4, "a", 1, not_a_number), answer(2, "a", 1, not_a_number)}).best() == 2);
  CHECK(of({answer(1, "a", 1, not_a_number), answer(2, "a", 1, -9)}).best() == 2);
  // The best one gets worse when another evaluator answers for it.
  CHECK(of({answer(1, "a", 1, 0.5), answer(2, "a", 1, 0.9), answer(2, "b", 9, 0.1)}).best() == 1);
}

TEST_CASE("a loss that is not finite leaves the version without a value") {
  const auto judgement =
      of({answer(1, "a", 5, 0.5), answer(2, "a", 5, 0.9), answer(2, "b", 5, 0.9, not_a_number)});
  CHECK(judgement.newest() == 2);
  CHECK(judgement.has_diverged());
  CHECK(!judgement.value_of(2));
  CHECK(judgement.best() == 1);
}

TEST_CASE("an answer without the metric does not count, and the loss is a metric too") {
  EvaluationRecord other = answer(2, "a", 5, 0.9, 0.25);
  other.metrics[0].name = "other";
  CHECK(of({other}).empty());
  CHECK(of({other, answer(1, "a", 5, 0.9)}).newest() == 1);
  const auto by_loss = of({other, answer(3, "a", 5, 0.9, 0.5)}, known_metric(loss_name));
  CHECK(by_loss.best() == 2);
  CHECK(by_loss.value_of(2) == 0.25);
  other.loss = not_a_number;
  CHECK(of({other}).has_diverged());
}

}  // namespace
}  // namespace fl::test
