// SPDX-License-Identifier: Apache-2.0
// What holds for all robust rules: the same bits with any number of threads, no update beside the
// others moves the result far, and edge cases end well.
#include "server/sums/rules/rule_table.hpp"
#include "server/sums/sorted_rows.hpp"
#include "tests/server/sums/rows_in_memory.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace fl::test {

using namespace fl::server;
namespace {

using Vectors = std::vector<std::vector<float>>;

constexpr std::string_view specs[] = {"median",
                                      "trimmed:0.2",
                                      "krum",
                                      "krum:1",
                                      "multikrum:1,3",
                                      "geomedian",
                                      "centered-clip:40",
                                      "nnm+median",
                                      "nnm+trimmed:1",
                                      "nnm+krum",
                                      "nnm+multikrum:1,3",
                                      "nnm+geomedian",
                                      "nnm:1+centered-clip:40"};

/// Around 3 in each coordinate.
Vectors draw(std::size_t updates, std::size_t elements) {
  std::mt19937_64 random(updates * 1000 + elements);
  Vectors drawn(updates, std::vector<float>(elements));
  for (auto& update : drawn)
    for (float& value : update) value = 3 + static_cast<float>(random() % 1000) / 1000;
  return drawn;
}

TEST_CASE("the tests of this file look at every robust rule, also behind nnm+") {
  for (const RuleRow& row : rule_rows()) {
    CAPTURE(row.name);
    const auto is_this = [&](std::string_view spec) {
      return spec.substr(0, spec.find(':')) == row.name;
    };
    CHECK(std::ranges::any_of(specs, is_this) != row.is_mean());
    const auto mixes_this = [&](std::string_view spec) {
      const std::size_t plus = spec.find('+');
      return plus != std::string_view::npos && is_this(spec.substr(plus + 1));
    };
    CHECK(std::ranges::any_of(specs, mixes_this) != row.is_mean());
  }
}

TEST_CASE("the bits do not depend on the number of threads, nor on the size of the reads") {
  const Vectors updates = draw(7, 5003);
  for (const std::string_view spec : specs) {
    CAPTURE(std::string(spec));
    const auto rule = parse_aggregate(spec).value();
    const auto alone = aggregate(rule, updates, 5000);
    CHECK(aggregate(rule, updates, 5000, {}, 3) == alone);
    RowsInMemory rows(updates);
    RobustMean mean(rule, rows, 5000, 2);
    REQUIRE(mean.prepare());
    std::vector<float> out(alone.size());
    for (std::size_t first = 0; first < out.size();) {
      const std::size_t some = std::min<std::size_t>(701, out.size() - first);
      REQUIRE(mean.read(first, std::span(out).subspan(first, some)));
      first += some;
    }
    CHECK(out == alone);
  }
}

TEST_CASE("one update among seven, whatever it is, leaves the result near the others") {
  constexpr std::size_t elements = 40;
  for (const float value : {1e30F, -1e30F, 3e38F, 0.0F, -3.0F}) {
    for (const std::string_view spec : specs) {
      CAPTURE(std::string(spec));
      CAPTURE(value);
      Vectors updates = draw(7, elements);
      updates[2].assign(elements, value);
      for (const float v : aggregate(parse_aggregate(spec).value(), updates, elements)) {
        CHECK(v > 1.5F);
        CHECK(v < 5.5F);
      }
    }
  }
}

TEST_CASE("statistics take part in the result, not in the distances") {
  Vectors updates = draw(7, 12);
  for (std::size_t k = 0; k < updates.size(); ++k) {
    for (std::size_t i = 10; i < 12; ++i) updates[k][i] = 1e6F * static_cast<float>(k);
  }
  const auto rule = parse_aggregate("krum:1").value();
  const auto whole = aggregate(rule, updates, 10);
  const auto chosen = std::ranges::find(updates, whole);
  REQUIRE(chosen != updates.end());
  for (auto& update : updates) update.resize(10);
  CHECK(aggregate(rule, updates, 10) == *(updates.begin() + (chosen - updates.cbegin())));
}

TEST_CASE("updates that are all the same are the result, and so is a single one") {
  for (const std::string_view spec : specs) {
    CAPTURE(std::string(spec));
    const auto rule = parse_aggregate(spec).value();
    for (const std::size_t count : {1u, 2u, 3u, 8u}) {
      CAPTURE(count);
      const std::vector<float> same{1, -2, 0, 4.5F};
      const auto result = aggregate(rule, Vectors(count, same), 4);
      for (std::size_t i = 0; i < same.size(); ++i)
        CHECK(result[i] == doctest::Approx(same[i]).epsilon(1e-6));
    }
  }
}

TEST_CASE("of any number of rows, columns are sorted") {
  std::mt19937_64 random(5);
  for (std::size_t rows = 1; rows <= 40; ++rows) {
    constexpr std::size_t columns = 9;
    std::vector<float> matrix(rows * columns);
    for (float& value : matrix) value = static_cast<float>(random() % 50) - 25;
    std::vector<float> wanted = matrix;
    for (std::size_t c = 1; c < columns; ++c) {  // Column 0 is left alone.
      std::vector<float> column;
      for (std::size_t r = 0; r < rows; ++r) column.push_back(wanted[r * columns + c]);
      std::ranges::sort(column);
      for (std::size_t r = 0; r < rows; ++r) wanted[r * columns + c] = column[r];
    }
    sort_columns({matrix, rows, columns, 1, columns});
    CHECK(matrix == wanted);
  }
}

TEST_CASE("centered clipping moves from the last result by no more than its radius") {
  const auto rule = parse_aggregate("centered-clip:2").value();
  const std::vector<float> center(16, 3);
  Vectors updates = draw(5, 16);
  for (auto& update : updates) std::ranges::fill(update, 1e6F);
  double squared = 0;
  for (const float value : aggregate(rule, updates, 16, center))
    squared += (value - 3.0) * (value - 3.0);
  CHECK(std::sqrt(squared) == doctest::Approx(2));
}

}  // namespace
}  // namespace fl::test
