// SPDX-License-Identifier: Apache-2.0
// What evaluators' answers say of the versions, whatever the order in which they come.
#include "server/round/judgement.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::server;
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

const Voters two_voters{"a", "b"};

TEST_CASE("evaluators of unequal sizes make one value of a version") {
  const auto judgement = of({answer(3, "small", 10, 0.9), answer(3, "large", 990, 0.5)});
  CHECK(judgement.value_of(3, two_voters).value() == doctest::Approx(0.504));
  CHECK(!judgement.value_of(4, two_voters));
  SUBCASE("a second answer of one of them replaces its first") {
    auto again = judgement;
    again.note(answer(3, "small", 990, 0.7));
    CHECK(again.value_of(3, two_voters).value() == doctest::Approx(0.6));
  }
  SUBCASE("a value's own weight counts in place of the examples") {
    auto by_counts = answer(3, "small", 10, 0.9);
    by_counts.metrics[0].weight = 20;
    CHECK(of({by_counts, answer(3, "large", 980, 0.5)}).value_of(3, two_voters).value() ==
          doctest::Approx(0.508));
  }
  SUBCASE("a loss counts with its predictions") {
    const MetricKind kind = known_metric(loss_name);
    auto long_texts = answer(3, "small", 10, 0, 4);
    long_texts.predictions = 30;
    CHECK(of({long_texts, answer(3, "large", 990, 0, 2)}, kind).value_of(3, two_voters).value() ==
          doctest::Approx(2100.0 / 1020));
  }
  SUBCASE("perplexities make that of the mean loss") {
    const MetricKind kind{.name = "score", .lower_is_better = true, .combine = Combine::log_mean};
    CHECK(of({answer(1, "a", 5, 4), answer(1, "b", 5, 16)}, kind).value_of(1, two_voters).value() ==
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
      REQUIRE(judgement.newest(two_voters) == 5);
      REQUIRE(!judgement.value_of(5, two_voters));
      REQUIRE(!judgement.has_diverged(two_voters));
      REQUIRE(judgement.value_of(1, two_voters).value() == doctest::Approx(0.4));
      REQUIRE(judgement.value_of(2, two_voters).value() == doctest::Approx(0.45));
      REQUIRE(judgement.best(two_voters) == (lower ? 1 : 3));
    } while (std::ranges::next_permutation(order).found);
  }
}

TEST_CASE("of equal versions the first is the best, and any value is better than none") {
  CHECK(of({answer(4, "a", 1, 0.5), answer(2, "a", 1, 0.5), answer(3, "a", 1, 0.5)})
            .best(two_voters) == 2);
  CHECK(of({answer(4, "a", 1, not_a_number), answer(2, "a", 1, not_a_number)}).best(two_voters) ==
        2);
  CHECK(of({answer(1, "a", 1, not_a_number), answer(2, "a", 1, -9)}).best(two_voters) == 2);
  // The best one gets worse when another evaluator answers for it.
  CHECK(of({answer(1, "a", 1, 0.5), answer(2, "a", 1, 0.9), answer(2, "b", 9, 0.1)})
            .best(two_voters) == 1);
}

TEST_CASE("a loss that is not finite is missing, unless most of them are") {
  const auto one = of({answer(1, "a", 5, 0.5), answer(2, "a", 5, 0.9, not_a_number)});
  CHECK(one.newest(two_voters) == 2);
  CHECK(one.has_diverged(two_voters));
  CHECK(!one.value_of(2, two_voters));
  CHECK(one.best(two_voters) == 1);
  const auto two =
      of({answer(1, "a", 5, 0.5), answer(2, "a", 5, 0.9), answer(2, "b", 5, 0.1, not_a_number)});
  CHECK(!two.has_diverged(two_voters));
  CHECK(two.value_of(2, two_voters) == 0.9);
  CHECK(two.best(two_voters) == 2);
}

TEST_CASE("three evaluators or more decide by majority, whatever one of them says") {
  struct Lie {
    double value;
    double loss;
    double weight;
  };
  const std::vector<std::string> all{"a", "b", "c", "d", "liar"};
  for (const std::size_t honest : {2u, 4u}) {
    Voters voters{"liar"};
    for (std::size_t i = 0; i < honest; ++i) voters.insert(all[i]);
    for (const Lie& lie : {Lie{1e308, 1, 1e15}, Lie{-1e308, 1, 1e15}, Lie{not_a_number, 1, 0},
                           Lie{0.5, not_a_number, 0}, Lie{0.5, 1, 1e15}}) {
      CAPTURE(honest);
      CAPTURE(lie.value);
      CAPTURE(lie.loss);
      Judgement judgement({.name = "score"});
      // The honest ones find version 3 the best, each on data of its own.
      const double values[] = {0.1, 0.3, 0.4, 0.2, 0.2};
      for (Version version = 1; version <= 5; ++version) {
        EvaluationRecord wrong = answer(version, "liar", 1'000'000, lie.value, lie.loss);
        wrong.metrics[0].weight = lie.weight;
        // It says the opposite of the others, too.
        if (lie.value == 0.5) wrong.metrics[0].value = 1 - values[version - 1];
        judgement.note(wrong);
        CHECK(judgement.newest(voters) ==
              (version == 1 ? std::nullopt : std::optional(version - 1)));
        CHECK(!judgement.value_of(version, voters));  // It alone makes no value.
        for (std::size_t i = 0; i < honest; ++i) {
          const double offset = 0.05 * static_cast<double>(i);
          judgement.note(answer(version, all[i], 10, values[version - 1] + offset));
        }
        CHECK(judgement.newest(voters) == version);
        const double value = judgement.value_of(version, voters).value();
        CHECK(value >= values[version - 1]);
        CHECK(value <= values[version - 1] + 0.05 * static_cast<double>(honest - 1));
        CHECK(judgement.is_stuck(2, voters) == (version == 5));
      }
      CHECK(judgement.best(voters) == 3);
      CHECK(!judgement.has_diverged(voters));
      judgement.forget("liar");
      CHECK(!judgement.knows("liar"));
      Voters others = voters;
      others.erase("liar");
      CHECK(judgement.newest(others) == 5);
      CHECK(judgement.best(others) == 3);
    }
  }
}

TEST_CASE("what most evaluators lack has no value, and one that is silent holds up nobody") {
  const Voters voters{"a", "b", "c"};
  Judgement judgement({.name = "score", .lower_is_better = true});
  judgement.note(answer(1, "a", 10, 5));
  CHECK(!judgement.newest(voters));
  CHECK(!judgement.value_of(1, voters));
  judgement.note(answer(1, "b", 10, 3));
  CHECK(judgement.newest(voters) == 1);
  CHECK(judgement.value_of(1, voters) == 5);  // The worse one of the middle two.
  for (const char* const name : {"a", "b"}) judgement.note(answer(2, name, 10, 9, not_a_number));
  CHECK(judgement.has_diverged(voters));
  CHECK(!judgement.value_of(2, voters));
  CHECK(judgement.is_stuck(1, voters));
  CHECK(judgement.best(voters) == 1);
  // A better answer for the best version, or a worse one, in place of the first.
  judgement.note(answer(3, "a", 10, 4));
  CHECK(!judgement.is_stuck(1, voters));
  judgement.note(answer(3, "a", 10, 6));
  CHECK(judgement.is_stuck(1, voters) == true);
}

TEST_CASE("an answer without the metric does not count, and the loss is a metric too") {
  EvaluationRecord other = answer(2, "a", 5, 0.9, 0.25);
  other.metrics[0].name = "other";
  CHECK(of({other}).empty());
  CHECK(of({other, answer(1, "a", 5, 0.9)}).newest(two_voters) == 1);
  const auto by_loss = of({other, answer(3, "a", 5, 0.9, 0.5)}, known_metric(loss_name));
  CHECK(by_loss.best(two_voters) == 2);
  CHECK(by_loss.value_of(2, two_voters) == 0.25);
  other.loss = not_a_number;
  CHECK(of({other}).has_diverged(two_voters));
}

TEST_CASE("evaluators without a vote, or without the metric, do not say that the model diverged") {
  EvaluationRecord other = answer(9, "other", 5, 0.9, not_a_number);
  other.metrics[0].name = "other";
  const auto measured = answer(2, "a", 5, 0.9);
  for (const auto& answers : {std::vector{other, measured}, std::vector{measured, other}}) {
    const auto judgement = of(answers);
    CHECK(judgement.knows("a"));
    CHECK(!judgement.knows("other"));
    CHECK(judgement.newest({"a"}) == 2);
    CHECK(!judgement.is_stuck(1, {"a"}));
    CHECK(!judgement.has_diverged({"a"}));
    CHECK(judgement.has_diverged({"a", "other"}));
  }
  // It says no more where it measures the same version.
  Judgement judgement = of({measured});
  for (const char* const name : {"other", "third", "fourth"}) {
    other.version = 2;
    other.client = name;
    judgement.note(other);
  }
  CHECK(judgement.value_of(2, {"a"}) == 0.9);
  CHECK(!judgement.has_diverged({"a"}));
  // The client measures this later, and takes it back.
  judgement.note(answer(3, "other", 5, 0.9));
  CHECK(judgement.knows("other"));
  other.version = 3;
  other.client = "other";
  judgement.note(other);
  CHECK(!judgement.knows("other"));
}

// Made anew for each answer, the means of all versions would take minutes.
TEST_CASE("a judgement of many versions that get better is made in little time") {
  constexpr Version versions = 20'000;
  Judgement judgement({.name = "score"});
  const auto began = std::chrono::steady_clock::now();
  for (Version version = 1; version <= versions; ++version)
    for (const char* const name : {"a", "b", "c"})
      judgement.note(answer(version, name, 10, static_cast<double>(version)));
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(30));
  CHECK(judgement.best(two_voters) == versions);
  judgement.forget("c");
  CHECK(judgement.best(two_voters) == versions);
  judgement.note(answer(versions, "a", 10, 0));
  judgement.note(answer(versions, "b", 10, 0));
  CHECK(judgement.best(two_voters) == versions - 1);
}

TEST_CASE("a judgement is made anew only for a kind that changes it") {
  const MetricKind kind{.name = "score"};
  const Judgement judgement(kind);
  CHECK(judgement.judges_by(kind));
  CHECK(judgement.judges_by({.name = "score", .combine = Combine::none}));
  CHECK(!judgement.judges_by({.name = "score", .combine = Combine::log_mean}));
  CHECK(!judgement.judges_by({.name = "score", .lower_is_better = true}));
  CHECK(!judgement.judges_by({.name = "other"}));
}

}  // namespace
}  // namespace fl::test
