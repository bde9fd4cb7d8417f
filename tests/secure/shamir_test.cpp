// SPDX-License-Identifier: Apache-2.0
// Shamir's secret sharing over GF(2^128), against shares that pycryptodome makes and opens.
#include "shared/secure/shamir.hpp"

#include "shared/base/io/text_of_bytes.hpp"
#include "shared/secure/primitives.hpp"

#include <doctest/doctest.h>

#include <random>
#include <set>
#include <string_view>

using namespace fl;
using namespace fl::secure;

namespace {

/// Two numbers of 16 bytes: the first one from text, the second one zero.
Secret first_half(std::string_view hex) {
  Secret out;
  FL_ASSERT(read_hex(hex, out.bytes().first(16)));
  return out;
}

Secret named(std::string_view text) { return Secret(digest_of({bytes_of(text)})); }

}  // namespace

TEST_CASE("shares of another implementation open here") {
  // Shamir.split(6, 10, secret, ssss=False) of pycryptodome.
  const Secret secret = first_half("c11f6531eb66d9a7f30567547a34c162");
  const std::vector<Share> shares{{1, first_half("9ac96d5689f65b9c95b2840d1de9bdf9")},
                                  {2, first_half("3ae5238f1d6c73079f1dc805beac143e")},
                                  {3, first_half("a24fff11131a4a0019913a50e6df5672")},
                                  {4, first_half("54d1a6e3d257064c48ef8474d6c5075a")},
                                  {5, first_half("cf9eca29d0652ab0ac9e53e050856d1c")},
                                  {6, first_half("23ea7ae256821d90a197068e2fdf05ee")},
                                  {7, first_half("7bd9c2d138568a50a5ddc0169631517f")},
                                  {8, first_half("258c5b61ab7347b0a4b51f2e6960d35f")},
                                  {9, first_half("5fd24482424abe21e88be0ecb11b3da2")},
                                  {10, first_half("8680951d2d1ec3a39c6701292fc4d765")}};
  std::mt19937 random(7);
  for (int i = 0; i < 40; ++i) {
    std::vector<Share> some = shares;
    std::ranges::shuffle(some, random);
    some.erase(some.begin() + 6 + i % 5, some.end());
    CHECK(combine(some).value() == secret);
    some.resize(5, some[0]);
    CHECK_FALSE(combine(some).value() == secret);
  }
}

TEST_CASE("any `threshold` shares give the secret, and one fewer do not") {
  std::mt19937 random(3);
  for (const std::size_t threshold : {1u, 2u, 3u, 7u, 86u}) {
    const Secret secret = named("secret");
    const Sharing sharing(secret, threshold, named("coefficients"));
    std::vector<Share> shares;
    for (std::uint32_t index = 1; index <= threshold + 5; ++index)
      shares.push_back(sharing.at(index));
    std::ranges::shuffle(shares, random);
    CHECK(combine(std::span(shares).first(threshold)).value() == secret);
    CHECK(combine(shares).value() == secret);
    if (threshold > 1)
      CHECK_FALSE(combine(std::span(shares).first(threshold - 1)).value() == secret);
    // Shares are the same when they are made again, and others with other coefficients.
    CHECK(Sharing(secret, threshold, named("coefficients")).at(3).value == sharing.at(3).value);
    if (threshold > 1)
      CHECK_FALSE(Sharing(secret, threshold, named("others")).at(3).value == sharing.at(3).value);
    std::vector<Share> wrong(shares.begin(), shares.begin() + static_cast<int>(threshold));
    wrong.back().value.bytes()[31] ^= std::byte{1};
    CHECK_FALSE(combine(wrong).value() == secret);
  }
}

TEST_CASE("one share fewer than needed fits every secret equally well") {
  // With threshold 2, a share (x, y) and any secret s lie on one line, so y says nothing about s:
  // over random coefficients the shares of two secrets must look alike. Counts of the low 4 bits.
  constexpr int draws = 16'000;
  double chi_square = 0;
  std::vector<int> counts[2] = {std::vector<int>(16), std::vector<int>(16)};
  for (int which = 0; which < 2; ++which) {
    const Secret secret = named(which == 0 ? "one" : "other");
    for (int i = 0; i < draws; ++i) {
      const Secret coefficients = named(std::to_string(which) + "," + std::to_string(i));
      const Secret value = Sharing(secret, 2, coefficients).at(5).value;
      ++counts[which][std::to_integer<std::size_t>(value.bytes()[31]) % 16];
    }
  }
  for (std::size_t bin = 0; bin < 16; ++bin) {
    const double difference = counts[0][bin] - counts[1][bin];
    chi_square += difference * difference / (counts[0][bin] + counts[1][bin]);
  }
  CHECK(chi_square < 44);  // 15 degrees of freedom: exceeded once in 10,000 times.
}

TEST_CASE("shares that can't be combined are refused") {
  const Sharing sharing(named("secret"), 2, named("coefficients"));
  CHECK_FALSE(combine({}).has_value());
  const std::vector<Share> twice{sharing.at(1), sharing.at(1)};
  CHECK_FALSE(combine(twice).has_value());
  std::vector<Share> zero{sharing.at(1), sharing.at(2)};
  zero[0].index = 0;
  CHECK_FALSE(combine(zero).has_value());
}
