// SPDX-License-Identifier: Apache-2.0
// Values that fp32 alone would make alike keep what tells them apart, and all others their bits.
#include "client/learn/data/shifted_values.hpp"

#include "client/learn/data/random.hpp"
#include "tests/client/learn/csv_table.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace fl::test {
namespace {

constexpr double no_value = std::numeric_limits<double>::quiet_NaN();

struct Shifted {
  std::vector<double> offsets;
  std::vector<float> kept;
  std::optional<ShiftedValues::Vanished> vanished;

  [[nodiscard]] double value(std::size_t i) const {
    return offsets.empty() ? kept[i] : offsets[i % offsets.size()] + kept[i];
  }
};

Shifted shift(const std::vector<double>& values, std::uint64_t columns, std::size_t piece) {
  Shifted made;
  ShiftedValues shifted(columns, [&](std::span<const float> more) {
    made.kept.insert(made.kept.end(), more.begin(), more.end());
    return success();
  });
  for (std::size_t at = 0; at < values.size(); at += piece) {
    const auto more = std::span(values).subspan(at, std::min(piece, values.size() - at));
    REQUIRE(shifted.append(more).has_value());
  }
  made.offsets = shifted.finish().value();
  made.vanished = shifted.vanished();
  return made;
}

// A column of n values about `base`, which differ by up to `scale`.
std::vector<double> column_of(double base, double scale, std::size_t n = 400) {
  Random random(7, 0);
  std::vector<double> values(n);
  for (double& value : values)
    value = base + scale * (static_cast<double>(random.below(2001)) - 1000) / 1000;
  return values;
}

}  // namespace

TEST_CASE("values that fp32 tells apart keep their bits") {
  const std::vector<std::vector<double>> all = {
      column_of(0, 1),
      column_of(1000, 10),
      column_of(0.1, 0.01),
      {0.1, 0.1, 0.1},
      {1.7e9, no_value, 0.3},
      {16777215, 16777214, 16777215},
      {no_value, no_value},
      // These differ as fp64 rounds them, and say nothing.
      {0.3, 0.1 + 0.2, 0.3},
      {},
  };
  for (const auto& values : all) {
    const Shifted made = shift(values, 1, 7);
    CHECK(made.offsets.empty());
    REQUIRE(made.kept.size() == values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!std::isnan(values[i])) CHECK(made.kept[i] == static_cast<float>(values[i]));
    }
    CHECK_FALSE(made.vanished.has_value());
  }
}

TEST_CASE("times, map coordinates and pressures keep what tells them apart") {
  struct Kind {
    double base;
    double scale;
  };
  for (const Kind kind : std::vector<Kind>{{1'700'000'000, 15},
                                           {1'700'000'000'000, 2e7},
                                           {52.52, 0.0001},
                                           {5'432'100, 0.3},
                                           {101'325, 0.01},
                                           {-101'325, 0.01},
                                           {20240116.5, 8}}) {
    CAPTURE(kind.base);
    const std::vector<double> values = column_of(kind.base, kind.scale);
    for (const std::size_t piece : {std::size_t{1}, std::size_t{64}, values.size()}) {
      const Shifted made = shift(values, 1, piece);
      REQUIRE(made.offsets.size() == 1);
      for (std::size_t i = 0; i < values.size(); ++i)
        CHECK(std::abs(made.value(i) - values[i]) < 1e-5 * kind.scale);
    }
  }
}

TEST_CASE("each column has an offset of its own, also behind the values that decide") {
  std::vector<double> rows;
  const auto times = column_of(1.7e9, 15, 200'000);
  for (std::size_t i = 0; i < times.size(); ++i) {
    rows.push_back(i % 5 == 0 ? no_value : times[i]);
    rows.push_back(static_cast<double>(i % 10) / 10);
  }
  const Shifted made = shift(rows, 2, 999);  // Pieces end within rows.
  REQUIRE(made.offsets.size() == 2);
  CHECK(made.offsets[1] == 0);
  REQUIRE(made.kept.size() == rows.size());
  bool is_right = true;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    is_right = is_right && (std::isnan(rows[i]) ? std::isnan(made.kept[i])
                                                : std::abs(made.value(i) - rows[i]) < 1e-4);
  }
  CHECK(is_right);
}

TEST_CASE("a column in which fp32 sees nothing but 0 is found") {
  const Shifted lost = shift({1, 1e-50, 2, 0, 3, no_value}, 2, 4);
  REQUIRE(lost.vanished.has_value());
  CHECK(lost.vanished->column == 1);
  CHECK(lost.vanished->value == 1e-50);
  CHECK_FALSE(shift({1, 1e-50, 2, 0, 3, 1e-3}, 2, 4).vanished.has_value());
  CHECK_FALSE(shift({1, 0, 2, 0}, 2, 4).vanished.has_value());
}

TEST_CASE("csv: times keep their seconds, as inputs and as targets") {
  std::string text = "t,a,y\n";
  for (int i = 0; i < 50; ++i)
    text += fmt::format("{},{},{}\n", 1'700'000'000 + i, 0.1 * i, 1'600'000'000.5 + i);
  const DataSet set = Table(text).read("target=y");
  REQUIRE(set.input_offsets.size() == 2);
  REQUIRE(set.target_offsets.size() == 1);
  CHECK(set.labels.empty());
  CHECK(set.input_names == std::vector<std::string>{"t", "a"});
  CHECK(set.target_names == std::vector<std::string>{"y"});
  const Values values = values_of(set);
  for (std::size_t i = 0; i < 50; ++i) {
    CHECK(set.input_offsets[0] + values[2 * i] == 1.7e9 + static_cast<double>(i));
    CHECK(values[2 * i + 1] == static_cast<float>(0.1 * static_cast<double>(i)));
    CHECK(set.target_offsets[0] + set.targets[i] == 1600000000.5 + static_cast<double>(i));
  }
}

TEST_CASE("csv: a column of values too small for fp32 is refused, with its name") {
  const Table table("a,mass,y\n1,1e-50,0\n2,3e-50,1\n");
  expect_no_data(table.data("target=y"), Errc::corrupt,
                 {table.file, "column \"mass\"", "3e-50", "multiply the column"});
  expect_no_data(table.data("target=mass,ignore=y"), Errc::corrupt, {"column \"mass\""});
}

}  // namespace fl::test
