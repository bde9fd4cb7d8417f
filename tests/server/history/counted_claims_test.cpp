// SPDX-License-Identifier: Apache-2.0
// Claimed figures count bounded in a mean, and the history's views count them in the same way.
#include "server/history/counted_claims.hpp"
#include "tests/server/history/records.hpp"
#include "tests/server/history/store_world.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::server;
namespace {

constexpr double huge = 1.7e308;
constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

TEST_CASE("a figure counts as at most 100 times the median, and up to 1 as it is") {
  struct Case {
    std::vector<double> figures;
    double limit;
  };
  const Case cases[] = {
      {{}, 0x1p127},
      {{huge}, 0x1p127},
      {{0.5, huge}, 0x1p127},        // With two figures, neither can be called the odd one.
      {{0.5, huge, 0.25}, 50},       // The median is 0.5.
      {{0.5, -huge, -0.25}, 50},     // It is that of the magnitudes.
      {{2, 3, 4, 5}, 400},           // The larger middle one.
      {{2, 3, huge, huge, 4}, 400},  // Two of five can't move it beyond the others.
      {{0, 0, 0, 1}, 1},             // Fractions count as they are.
      {{0.001, 0.001, 0.001, 7}, 1},
      {{huge, huge, huge}, 0x1p127},
      {{0.5, not_a_number, infinite}, 0x1p127},  // One finite figure.
      {{0.5, not_a_number, 3, infinite, 2}, 200},
  };
  for (const Case& one : cases) {
    CAPTURE(one.limit);
    auto figures = one.figures;
    std::ranges::sort(figures, [](double a, double b) { return std::isnan(b) ? false : a < b; });
    CHECK(figure_limit(one.figures) == one.limit);
    std::ranges::reverse(figures);
    CHECK(figure_limit(figures) == one.limit);
  }
  CHECK(counted_figure(huge, 50) == 50);
  CHECK(counted_figure(-huge, 50) == -50);
  CHECK(counted_figure(49.5, 50) == 49.5);
}

struct ClaimsCase {
  const char* what;
  std::vector<Claim> claims;
  double mean;  // The mean of the values as they count.
};

const std::vector<ClaimsCase>& claims_cases() {
  static const std::vector<ClaimsCase> cases{
      {"one member counts as it says", {{0.5, 1e15, 10}}, 0.5},
      {"weights are examples", {{0.25, 0, 30}, {0.75, 0, 10}}, 0.375},
      {"honest weights are not touched, of two", {{0.25, 60, 20}, {0.75, 20, 20}}, 0.375},
      {"nor of three", {{0.5, 1500, 10}, {0.25, 3000, 20}, {1, 4500, 10}}, 0.666666666666666667},
      {"a weight of 1e15 counts as 4 times the smaller one's, of two",
       {{0.5, 300, 10}, {1, 1e15, 10}},
       0.9},
      {"and as 4 times the median", {{0.5, 0, 10}, {0.5, 0, 10}, {1, 1e15, 10}}, 5.0 / 6},
      {"two for an example always count", {{0.5, 1, 10}, {1, 20, 10}}, 20.5 / 21},
      {"of two, no number of examples is the odd one", {{0.5, 0, 10}, {1, 0, 990}}, 0.995},
      {"2^40 examples count as ten times the median",
       {{0.5, 0, 10}, {0.5, 0, 20}, {1, 0, 0x1p40}},
       (15 + 200) / 230.0},
      {"a value of 1.7e308 counts as 100 times the median",
       {{0.5, 0, 10}, {2, 0, 10}, {huge, 0, 10}},
       202.5 / 3},
      {"and one of -1.7e308", {{0.5, 0, 10}, {2, 0, 10}, {-huge, 0, 10}}, -197.5 / 3},
      {"all at once",
       {{0.5, 0, 10}, {2, 0, 10}, {2, 0, 10}, {2, 0, 10}, {huge, 1e15, 0x1p40}},
       (65 + 200 * 400) / 440.0},
      {"no more than a 32-bit float holds", {{0.5, 0, 10}, {huge, 0, 10}}, 0x1p126},
      {"values that are not finite are left out",
       {{0.5, 0, 10}, {not_a_number, 1e15, 0x1p40}, {infinite, 1e15, 0x1p40}},
       0.5},
  };
  return cases;
}

TEST_CASE("claimed values, weights and numbers of examples count bounded by the others'") {
  for (const ClaimsCase& one : claims_cases()) {
    CAPTURE(std::string(one.what));
    CHECK(combine(Combine::mean, counted_claims(one.claims)).value() ==
          doctest::Approx(one.mean).epsilon(1e-12));
    auto other_order = one.claims;
    std::ranges::reverse(other_order);
    CHECK(combine(Combine::mean, counted_claims(other_order)).value() ==
          doctest::Approx(one.mean).epsilon(1e-12));
  }
  CHECK(counted_claims({}).empty());
}

TEST_CASE("the view evaluation counts claims in the same way, for evaluators and for trainers") {
  for (const bool are_evaluators : {true, false}) {
    for (const ClaimsCase& one : claims_cases()) {
      CAPTURE(std::string(one.what));
      CAPTURE(are_evaluators);
      StoreWorld world;
      world.start_round({"a"});
      REQUIRE(world.store->rounds().commit(some_commit(world.run, 1)));
      for (std::size_t i = 0; i < one.claims.size(); ++i) {
        const Claim& claim = one.claims[i];
        EvaluationRecord record =
            some_evaluation(world.run, 1, fmt::format("c{}", i),
                            static_cast<std::uint64_t>(claim.examples), 1.0, 0);
        record.evaluator = are_evaluators;
        record.kinds = {{.name = "score"}};
        const double value = std::isfinite(claim.value) ? claim.value : not_a_number;
        record.metrics = {{"score", value, claim.weight}};
        REQUIRE(world.store->measurements().add(record));
      }
      bool is_seen = false;
      for (const MetricSummary& row : world.store->summaries().metrics(world.run).value()) {
        if (row.name != "score") continue;
        is_seen = true;
        const double expected = combine(Combine::mean, counted_claims(one.claims)).value();
        CHECK(row.value == doctest::Approx(expected).epsilon(1e-12));
      }
      CHECK(is_seen);
      // The claims themselves stay.
      const std::string claimed = world.text("SELECT max(value) FROM metric WHERE name = 'score'");
      double most = -infinite;
      for (const Claim& claim : one.claims)
        if (std::isfinite(claim.value)) most = std::max(most, claim.value);
      CHECK(std::stod(claimed) == doctest::Approx(most));
    }
  }
}

TEST_CASE("the view codec_summary counts an impossible coding error as 100 times the median") {
  StoreWorld world;
  auto tasks = world.start_round({"a", "b", "c"});
  const double errors[] = {0.25, 0.5, huge};
  for (std::size_t i = 0; i < 3; ++i) {
    tasks[i] = accepted(tasks[i]);
    tasks[i].nmse = errors[i];
  }
  REQUIRE(world.store->rounds().decide(tasks));
  CHECK(std::stod(world.text("SELECT nmse FROM codec_summary")) ==
        doctest::Approx((0.25 + 0.5 + 50) / 3));
}

}  // namespace
}  // namespace fl::test
