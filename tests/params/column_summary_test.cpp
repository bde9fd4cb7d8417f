// SPDX-License-Identifier: Apache-2.0
// Count, mean and squared deviations of columns: together they are those of all examples at once.
#include "shared/params/column_summary.hpp"

#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace fl::test {
namespace {

ColumnSummary summary_of(std::span<const double> values) {
  long double sum = 0;
  for (const double value : values) sum += value;
  const long double mean = values.empty() ? 0 : sum / static_cast<long double>(values.size());
  long double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {static_cast<double>(values.size()), static_cast<double>(mean),
          static_cast<double>(squares)};
}

TEST_CASE("summaries of parts add up to that of the whole, far from zero too") {
  std::mt19937 random(1);
  for (const double offset : {0.0, -3.0, 3e4, 1e9}) {
    std::normal_distribution<double> normal(offset, 2);
    std::vector<double> all;
    std::vector<ColumnSummary> sum(1);
    for (const std::size_t count : {0UL, 1UL, 7UL, 500UL, 3UL}) {
      std::vector<double> part(count);
      for (double& value : part) value = normal(random);
      add_summaries(sum, std::vector{summary_of(part)});
      all.insert(all.end(), part.begin(), part.end());
    }
    const ColumnSummary whole = summary_of(all);
    CHECK(sum[0].count == whole.count);
    CHECK(sum[0].mean == doctest::Approx(whole.mean).epsilon(1e-14));
    CHECK(sum[0].squares == doctest::Approx(whole.squares).epsilon(1e-7));
  }
}

TEST_CASE("a part may count with a share of its examples") {
  std::vector<ColumnSummary> sum(1);
  add_summaries(sum, std::vector<ColumnSummary>{{10, 1, 40}});
  add_summaries(sum, std::vector<ColumnSummary>{{100, 3, 400}}, 0.1);
  CHECK(sum[0].count == 20);
  CHECK(sum[0].mean == doctest::Approx(2));
  CHECK(sum[0].squares == doctest::Approx(40 + 40 + 20));  // 20 examples, each 1 from the mean.
}

TEST_CASE("medians of means and of variances withstand one wild summary") {
  const std::vector<std::vector<ColumnSummary>> told = {
      {{10, 1, 40}, {5, 2, 5}}, {{1e9, 1e30, 1e38}, {0, 0, 0}}, {{10, 2, 20}, {5, 4, 15}}};
  const auto medians = median_summaries(told);
  CHECK(medians[0] == ColumnSummary{1, 2, 4});
  CHECK(medians[1] == ColumnSummary{1, 3, 2});  // The median of the two that know this value.
  CHECK(median_summaries(std::vector<std::vector<ColumnSummary>>{{{}}})[0] == ColumnSummary{});
}

TEST_CASE("summaries that can't be right are refused") {
  constexpr double inf = std::numeric_limits<double>::infinity();
  const auto check = [](ColumnSummary one) {
    return check_summaries(std::vector{ColumnSummary{1, 2, 0}, one}, 2, 10);
  };
  CHECK(check({10, -3e38, 0}));
  CHECK(check({0, 0, 0}));
  for (const ColumnSummary wrong :
       {ColumnSummary{11, 0, 0}, ColumnSummary{-1, 0, 0}, ColumnSummary{5, inf, 0},
        ColumnSummary{5, std::nan(""), 0}, ColumnSummary{5, 1e39, 0}, ColumnSummary{5, 0, -1},
        ColumnSummary{5, 0, inf}, ColumnSummary{5, 0, 1e40}, ColumnSummary{0, 0, 1},
        ColumnSummary{std::nan(""), 0, 0}}) {
    const auto refused = check(wrong);
    REQUIRE(refused.has_error());
    CHECK(refused.error().message().find("value 2 has count") != std::string::npos);
  }
  CHECK(check_summaries({}, 1, 10).error().message().find(
            "0 values are told, and the model has 1") != std::string::npos);
}

}  // namespace
}  // namespace fl::test
