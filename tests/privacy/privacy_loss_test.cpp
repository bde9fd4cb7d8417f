// SPDX-License-Identifier: Apache-2.0
#include "shared/privacy/privacy_loss.hpp"
#include "shared/privacy/fourier.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <complex>
#include <cstddef>
#include <numbers>
#include <vector>

namespace fl::test {

using privacy::Direction;
using privacy::Mechanism;

namespace {

constexpr auto directions = {Direction::removes, Direction::adds};

}  // namespace

TEST_CASE("the transform is the sum that it says, and there is a way back") {
  std::vector<std::complex<double>> values;
  for (int i = 0; i < 8; ++i) values.emplace_back(std::sin(3 * i), std::cos(i * i));
  auto transformed = values;
  privacy::transform(transformed);
  for (int n = 0; n < 8; ++n) {
    std::complex<double> sum = 0;
    for (int k = 0; k < 8; ++k)
      sum +=
          values[static_cast<std::size_t>(k)] * std::polar(1.0, -2 * std::numbers::pi * k * n / 8);
    CHECK(std::abs(transformed[static_cast<std::size_t>(n)] - sum) < 1e-12);
  }
  privacy::transform_back(transformed);
  for (std::size_t i = 0; i < values.size(); ++i)
    CHECK(std::abs(transformed[i] - values[i]) < 1e-12);
}

TEST_CASE("moments of the loss") {
  for (const double noise : {0.5, 1.0, 7.0}) {
    for (const double order : {-3.0, -0.5, 0.5, 20.0}) {
      for (const Direction direction : directions) {
        // A Gaussian release with everybody in it has order (order + 1) / (2 noise^2).
        const double expected = order * (order + 1) / (2 * noise * noise);
        CHECK(privacy::log_moment({1, noise}, direction, order) ==
              doctest::Approx(expected).epsilon(1e-8));
      }
    }
  }
  // With -1 it is what lies under the other neighbour's density: all.
  for (const Direction direction : directions)
    CHECK(std::abs(privacy::log_moment({0.01, 0.8}, direction, -1)) < 1e-10);
}

TEST_CASE("a distribution on a grid keeps both neighbours' probabilities") {
  for (const Mechanism& mechanism :
       {Mechanism{1, 1}, {0.3, 0.5}, {0.001, 0.8}, {0.05, 10}, {1e-6, 2}}) {
    for (const Direction direction : directions) {
      CAPTURE(mechanism.sampling_rate);
      const double unit = 1e-3;
      const auto of = privacy::loss_distribution(mechanism, direction, unit);
      double own = 0;
      double other = 0;
      double mean_square = 0;
      for (std::size_t i = 0; i < of.masses.size(); ++i) {
        CHECK(of.masses[i] >= 0);
        const double loss = static_cast<double>(of.first + static_cast<long>(i)) * unit;
        own += of.masses[i];
        other += of.masses[i] * std::exp(-loss);
        mean_square += of.masses[i] * std::exp(2 * loss);
      }
      CHECK(std::abs(own + of.rest - 1) < 1e-12);
      CHECK(std::abs(other - 1) < 1e-12);
      // Rounding up shows in other moments, by the square of the unit.
      const double exact = privacy::log_moment(mechanism, direction, 2);
      CHECK(std::log(mean_square) >= exact - 1e-9);
      CHECK(std::log(mean_square) < exact + 4 * unit * unit);
    }
  }
}

}  // namespace fl::test
