// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

TEST_CASE("portable_log() and portable_exp() agree with libm over the whole range") {
  fl::Random random(1, 0);
  for (int i = 0; i < 100'000; ++i) {
    const double exponent = 1400 * random.uniform() - 700;
    const double expected = std::exp(exponent);
    CHECK(std::abs(fl::portable_exp(exponent) / expected - 1) < 2e-15);
    CHECK(std::abs(fl::portable_log(expected) - std::log(expected)) <
          4e-16 * std::max(1.0, std::abs(exponent)));
  }
  CHECK(fl::portable_log(1.0) == 0.0);
  CHECK(fl::portable_exp(0.0) == 1.0);
}

// A change of these numbers would change every partition and shuffle.
TEST_CASE("the random numbers never change") {
  fl::Random random(42, 7);
  const std::array<std::uint32_t, 3> words = {random.word(), random.word(), random.word()};
  CHECK(words == std::array<std::uint32_t, 3>{0x6feed042, 0x7f08a309, 0xdf8fe62e});
  CHECK(fl::shuffled_indices(8, 42, 7) == std::vector<std::uint32_t>{0, 4, 1, 2, 6, 5, 7, 3});
  CHECK(fl::mix_seeds(1, 2) == 0xdb0f4e82cfa2cb39);
}

// The count of each value is within 5 sigma, for an n that does not divide 2^32.
TEST_CASE("below() is uniform") {
  constexpr std::uint32_t n = 7;
  constexpr int draws = 70'000;
  fl::Random random(3, 0);
  std::array<int, n> counts{};
  for (int i = 0; i < draws; ++i) ++counts.at(random.below(n));
  const double expected = double{draws} / n;
  for (const int count : counts) CHECK(std::abs(count - expected) < 5 * std::sqrt(expected));
  CHECK(random.below(1) == 0);
}

// Mean and variance are within 5 sigma. Gamma(alpha, 1) has mean and variance alpha.
TEST_CASE("normal and gamma values have the right mean and variance") {
  constexpr int draws = 100'000;
  fl::Random random(4, 0);
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < draws; ++i) {
    const double x = random.normal();
    sum += x;
    squares += x * x;
  }
  CHECK(std::abs(sum / draws) < 5 / std::sqrt(draws));
  CHECK(std::abs(squares / draws - 1) < 5 * std::sqrt(2.0 / draws));

  for (const double alpha : {0.1, 0.5, 1.0, 3.0, 50.0}) {
    CAPTURE(alpha);
    sum = squares = 0;
    for (int i = 0; i < draws; ++i) {
      const double x = std::exp(random.log_gamma(alpha));
      sum += x;
      squares += (x - alpha) * (x - alpha);
    }
    CHECK(std::abs(sum / draws - alpha) < 5 * std::sqrt(alpha / draws));
    // The fourth central moment is 3 alpha^2 + 6 alpha.
    CHECK(std::abs(squares / draws - alpha) <
          5 * std::sqrt((2 * alpha * alpha + 6 * alpha) / draws));
  }
}

// Counts the 6 orders of 3 values.
TEST_CASE("a shuffle is a permutation, and all orders are equally likely") {
  constexpr int draws = 60'000;
  std::array<int, 27> counts{};
  for (int i = 0; i < draws; ++i) {
    const auto order = fl::shuffled_indices(3, 5, static_cast<std::uint64_t>(i));
    ++counts.at(order[0] * 9 + order[1] * 3 + order[2]);
  }
  int orders = 0;
  for (const int count : counts) {
    if (count == 0) continue;
    ++orders;
    CHECK(std::abs(count - draws / 6) < 5 * std::sqrt(draws / 6.0));
  }
  CHECK(orders == 6);
}
