// SPDX-License-Identifier: Apache-2.0
// The adaptive entropy coder for blocks of few levels, which sends no table (adaptive_coder.hpp).
#include "shared/codec/entropy/adaptive_coder.hpp"

#include "tests/codec/codec_support.hpp"

#include <cmath>
#include <map>

using namespace fl;
using namespace fl::codec;
using namespace fl::testing;

namespace {

/// Normally distributed levels, clipped to +-largest.
std::vector<std::int16_t> normal_levels(std::size_t n, float sigma, std::int32_t largest,
                                        std::uint64_t seed) {
  const std::vector<float> x = normal(n, seed, sigma);
  std::vector<std::int16_t> levels(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto level = static_cast<std::int32_t>(std::lround(x[i]));
    levels[i] = static_cast<std::int16_t>(std::clamp(level, -largest, largest));
  }
  return levels;
}

std::vector<std::byte> code(std::span<const std::int16_t> levels, std::int32_t largest,
                            const LevelClasses& classes = {}) {
  LevelScratch scratch;
  std::vector<std::byte> bytes(2 * levels.size() + 8);
  bytes.resize(write_adaptive_levels(levels, largest, scratch, bytes, classes));
  REQUIRE(!bytes.empty());
  return bytes;
}

bool comes_back(Bytes bytes, std::int32_t largest, std::span<const std::int16_t> levels,
                const LevelClasses& classes = {}) {
  std::vector<std::int16_t> back(levels.size());
  return read_adaptive_levels(bytes, largest, back, classes) && std::ranges::equal(back, levels);
}

double entropy_bits(std::span<const std::int16_t> levels) {
  std::map<std::int16_t, double> counts;
  for (const std::int16_t level : levels) ++counts[level];
  double bits = 0;
  for (const auto& [level, count] : counts)
    bits -= count * std::log2(count / static_cast<double>(levels.size()));
  return bits;
}

}  // namespace

TEST_CASE("levels decode to themselves for any count up to 3072 and any largest level") {
  for (const std::size_t n : {1u, 2u, 3u, 17u, 500u, 2048u, 3072u}) {
    for (const std::int32_t largest : {1, 2, 3, 4, 7, 8, 100, 127}) {
      CAPTURE(n);
      CAPTURE(largest);
      const auto sigma = static_cast<float>(largest) / 2;
      auto levels = normal_levels(n, sigma, largest, n);
      levels.back() = static_cast<std::int16_t>(-largest);
      levels.front() = static_cast<std::int16_t>(largest);
      const auto bytes = code(levels, largest);
      CHECK(comes_back(bytes, largest, levels));
      // The writer needs room for one byte more than it writes.
      LevelScratch scratch;
      std::vector<std::byte> room(bytes.size() + 1);
      CHECK(write_adaptive_levels(levels, largest, scratch, room, {}) == bytes.size());
      room.pop_back();
      CHECK(write_adaptive_levels(levels, largest, scratch, room, {}) == 0);
    }
  }
}

TEST_CASE("with classes each class has its own probabilities, which saves bytes") {
  constexpr std::size_t n = 2000;
  const auto narrow = normal_levels(n, 0.3f, 9, 1);
  const auto wide = normal_levels(n, 4, 9, 2);
  std::vector<std::int16_t> levels(n);
  std::vector<std::uint8_t> of(n);
  for (std::size_t i = 0; i < n; ++i) {
    of[i] = static_cast<std::uint8_t>(i * i % 7919 % 2 * 7);
    levels[i] = of[i] == 0 ? narrow[i] : wide[i];
  }
  const LevelClasses classes = {.of = of, .count = 8};
  const auto bytes = code(levels, 9, classes);
  CHECK(comes_back(bytes, 9, levels, classes));
  CHECK_FALSE(comes_back(bytes, 9, levels));
  const auto without = code(levels, 9);
  CHECK(static_cast<double>(bytes.size()) < 0.85 * static_cast<double>(without.size()));
}

TEST_CASE("the code of few levels is near their entropy") {
  for (const std::size_t n : {100u, 500u, 1000u, 2000u}) {
    for (const float sigma : {0.3f, 1.0f, 3.0f}) {
      CAPTURE(n);
      CAPTURE(sigma);
      const auto levels = normal_levels(n, sigma, 15, 3);
      // Learning a binary decision that is coded n times costs about log2(n) / 2 bits (Krichevsky
      // and Trofimov). The coder's state costs three bytes.
      std::map<int, bool> sizes;
      for (const std::int16_t level : levels) sizes[std::abs(level)] = true;
      const double learned =
          static_cast<double>(sizes.size() + 1) * (0.5 * std::log2(static_cast<double>(n)) + 1);
      const double bits = static_cast<double>(code(levels, 15).size()) * 8;
      CHECK(bits < entropy_bits(levels) + learned + 8 * 4);
    }
  }
  // Equal levels cost almost nothing.
  CHECK(code(std::vector<std::int16_t>(2000, 0), 127).size() <= 6);
  CHECK(code(std::vector<std::int16_t>(2000, -100), 127).size() <= 14);
}

TEST_CASE("damaged bytes of levels are refused or decode to levels in range") {
  const auto levels = normal_levels(300, 2, 7, 4);
  const auto good = code(levels, 7);
  std::vector<std::int16_t> back(levels.size());
  const auto is_taken = [&](Bytes bytes, std::size_t n) {
    back.assign(n, 99);
    const bool is_good = read_adaptive_levels(bytes, 7, back, {});
    if (is_good)
      CHECK(std::ranges::all_of(back, [](std::int16_t level) { return std::abs(level) <= 7; }));
    return is_good;
  };
  REQUIRE(is_taken(good, 300));
  for (std::size_t size = 0; size < good.size(); ++size)
    CHECK_FALSE(is_taken(Bytes(good).first(size), 300));
  for (const std::size_t n : {1u, 299u, 301u}) CHECK_FALSE(is_taken(good, n));
  auto longer = good;
  longer.insert(longer.end(), {std::byte{0}, std::byte{0}});
  CHECK_FALSE(is_taken(longer, 300));
  // With a flipped bit the final state is almost never the one that the decoder requires.
  int taken = 0;
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      auto bad = good;
      bad[at] ^= static_cast<std::byte>(1 << bit);
      taken += is_taken(bad, 300) ? 1 : 0;
    }
  }
  CHECK(taken <= 2);
  const std::vector<std::byte> zeros(100, std::byte{0});
  CHECK_FALSE(is_taken(zeros, 300));
}
