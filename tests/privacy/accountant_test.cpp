// SPDX-License-Identifier: Apache-2.0
#include "shared/privacy/accountant.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

namespace fl::test {

using privacy::epsilon_of;
using privacy::noise_for;
using privacy::Releases;

namespace {

/// The rows of the golden file that begin with this word, each as the numbers behind it.
std::vector<std::vector<double>> golden(const std::string& word) {
  std::ifstream file(FL_PRIVACY_GOLDEN);
  std::vector<std::vector<double>> rows;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first;
    if (!(words >> first) || first != word) continue;
    auto& row = rows.emplace_back();
    for (double number = 0; words >> number;) row.push_back(number);
  }
  REQUIRE_FALSE(rows.empty());
  return rows;
}

Releases releases_of(double rate, double noise, double count) {
  return {{rate, noise}, static_cast<std::uint64_t>(count)};
}

double epsilon_of_one(const Releases& releases, double delta) {
  return epsilon_of(std::span(&releases, 1), delta);
}

}  // namespace

TEST_CASE("epsilon agrees with dp-accounting, and lies between its bounds") {
  for (const auto& row : golden("poisson")) {
    REQUIRE(row.size() == 7);
    CAPTURE(row[0]);
    CAPTURE(row[1]);
    const double epsilon = epsilon_of_one(releases_of(row[0], row[1], row[2]), row[3]);
    CHECK(std::abs(epsilon / row[5] - 1) < 1e-4);
    CHECK(epsilon >= row[4]);
    CHECK(epsilon <= row[6]);
  }
}

TEST_CASE("epsilon of releases of several mechanisms") {
  for (const auto& row : golden("mixed")) {
    std::vector<Releases> parts;
    for (std::size_t i = 3; i + 2 < row.size(); i += 3)
      parts.push_back(releases_of(row[i], row[i + 1], row[i + 2]));
    REQUIRE(parts.size() == 2);
    const double epsilon = epsilon_of(parts, row[0]);
    CHECK(std::abs(epsilon / row[1] - 1) < 1e-4);
    CHECK(epsilon < row[2]);
  }
}

TEST_CASE("where everybody takes part, the noise is that of the analytic Gaussian mechanism") {
  for (const auto& row : golden("gaussian")) {
    const double noise = noise_for(row[0], row[1], 1, 1).value();
    CHECK(noise >= row[2] * (1 - 1e-9));
    CHECK(noise <= row[2] * 1.001);
    // Four releases with twice the noise tell as much.
    CHECK(noise_for(row[0], row[1], 1, 4).value() == doctest::Approx(2 * noise).epsilon(1e-3));
  }
}

TEST_CASE("both ways to compute epsilon meet where nearly everybody takes part") {
  for (const double noise : {0.5, 3.0, 20.0}) {
    const double all = epsilon_of_one(releases_of(1, noise, 30), 1e-6);
    const double nearly = epsilon_of_one(releases_of(1 - 1e-9, noise, 30), 1e-6);
    CHECK(nearly == doctest::Approx(all).epsilon(1e-5));
  }
}

TEST_CASE("rounding does not show in many releases with the smallest delta") {
  const double all = epsilon_of_one(releases_of(1, 200, 10'000), privacy::delta_min);
  const double nearly = epsilon_of_one(releases_of(1 - 1e-9, 200, 10'000), privacy::delta_min);
  CHECK(nearly == doctest::Approx(all).epsilon(1e-4));
}

TEST_CASE("epsilon at the edges") {
  CHECK(epsilon_of({}, 1e-6) == 0);
  CHECK(epsilon_of_one(releases_of(1, 1e6, 1), 1e-5) == 0);
  CHECK(epsilon_of_one(releases_of(1e-9, 1, 100), 1e-5) == 0);
  // Thousands are no overflow.
  const double large = epsilon_of_one(releases_of(1, 0.01, 1), 1e-5);
  CHECK(large > 5000);
  CHECK(large < 5500);
  CHECK(epsilon_of_one(releases_of(0.5, 0.1, 20), 1e-5) > 100);
  // Each loss beyond the tails may be infinite: ten billion releases have too many of these.
  CHECK(std::isinf(epsilon_of_one(releases_of(0.5, 1e4, 1e10), privacy::delta_min)));
}

TEST_CASE("the noise for drawn participants is just enough") {
  for (const auto& [epsilon, rate, count] :
       {std::tuple(8.0, 0.1, 100.0), std::tuple(2.0, 0.1, 100.0), std::tuple(0.5, 0.01, 500.0)}) {
    const double noise = noise_for(epsilon, 1e-6, rate, static_cast<std::uint64_t>(count)).value();
    CHECK(epsilon_of_one(releases_of(rate, noise, count), 1e-6) <= epsilon);
    CHECK(epsilon_of_one(releases_of(rate, noise / 1.002, count), 1e-6) > epsilon);
  }
  CHECK_FALSE(noise_for(1e-9, privacy::delta_min, 1, 1'000'000'000).has_value());
}

}  // namespace fl::test
