// SPDX-License-Identifier: Apache-2.0
// Kernels::gaussian(): the rows agree, a value depends on its index alone, and the distribution is
// normal.
#include "kernels/kernels.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace {

using namespace fl;

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

}  // namespace

TEST_CASE("gaussian: rows agree, and any part of the stream can be made alone") {
  std::vector<float> whole(70000);
  all_kernels().front()->gaussian(3, 4, 0, whole.data(), whole.size());
  for (const Kernels* row : all_kernels()) {
    CAPTURE(row->name);
    for (const std::size_t first : {0u, 1u, 7u, 31u, 32u, 33u, 1000u}) {
      for (const std::size_t n : {0u, 1u, 31u, 32u, 33u, 65537u}) {
        std::vector<float> out(n + 1, 42.0f);
        row->gaussian(3, 4, first, out.data(), n);
        CHECK(std::memcmp(out.data(), whole.data() + first, n * sizeof(float)) == 0);
        CHECK(out[n] == 42.0f);  // Nothing is written after the end.
      }
    }
  }
  std::vector<float> other(32);
  kernels().gaussian(3, 5, 0, other.data(), other.size());
  CHECK(std::memcmp(other.data(), whole.data(), 32 * sizeof(float)) != 0);
}

TEST_CASE("gaussian: moments, Kolmogorov-Smirnov distance, tails and neighbours of 2^22 values") {
  constexpr std::size_t n = 1 << 22;
  std::vector<float> x(n);
  kernels().gaussian(2026, 1, 0, x.data(), n);

  double power[5] = {};
  for (const float v : x) {
    for (int k = 1; k <= 4; ++k) power[k] += std::pow(static_cast<double>(v), k);
  }
  // Five standard errors of the mean of X^k. The variances of X, X^2, X^3, X^4 are 1, 2, 15, 96.
  const double unit = 5 / std::sqrt(static_cast<double>(n));
  CHECK(std::fabs(power[1] / n) < unit);
  CHECK(std::fabs(power[2] / n - 1) < unit * std::sqrt(2.0));
  CHECK(std::fabs(power[3] / n) < unit * std::sqrt(15.0));
  CHECK(std::fabs(power[4] / n - 3) < unit * std::sqrt(96.0));

  // Elements i and i + 8 may be one Box-Muller pair. Elements i and i + 1 have different counters.
  for (const std::size_t lag : {1u, 8u, 16u, 32u}) {
    double product = 0;
    for (std::size_t i = 0; i + lag < n; ++i) product += static_cast<double>(x[i]) * x[i + lag];
    CHECK(std::fabs(product / n) < unit);
  }

  const auto beyond = [&](double sigmas) {
    const auto count = std::ranges::count_if(x, [&](float v) { return std::fabs(v) > sigmas; });
    return static_cast<double>(count);
  };
  CHECK(std::fabs(beyond(4) - 6.334e-5 * n) < 5 * std::sqrt(6.334e-5 * n));
  CHECK(beyond(4.9) > 0);  // Expected: 4.
  CHECK(beyond(6.7) == 0);

  std::ranges::sort(x);
  double distance = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double cdf = normal_cdf(x[i]);
    distance = std::max({distance, std::fabs(cdf - static_cast<double>(i) / n),
                         std::fabs(cdf - static_cast<double>(i + 1) / n)});
  }
  CHECK(distance < 1.95 / std::sqrt(static_cast<double>(n)));  // Fails for 1 in 1,000 seeds.
}
