// SPDX-License-Identifier: Apache-2.0
// The functions that rotate and quantize for the codec eden. Compares every row with the scalar
// row, bit for bit, and the scalar row with the definitions.
#include "kernels/generic/philox.hpp"
#include "kernels/kernels.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

using namespace fl;

namespace {

const Kernels& first_row() { return *all_kernels().front(); }

std::vector<float> normal_values(std::size_t n, std::uint64_t seed) {
  std::vector<float> x(n);
  kernels().gaussian(seed, 0, 0, x.data(), n);
  return x;
}

template <class T>
bool equal_bits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

constexpr Centroids centroid_tables[] = {
    {.count = 1, .values = {0.8f}, .thresholds = {}},
    {.count = 2, .values = {0.5f, 1.5f}, .thresholds = {1.0f}},
    {.count = 8,
     .values = {0.1f, 0.4f, 0.7f, 0.9f, 1.3f, 1.6f, 2.1f, 2.7f},
     .thresholds = {0.25f, 0.55f, 0.8f, 1.1f, 1.45f, 1.85f, 2.4f}}};

}  // namespace

TEST_CASE("hadamard: element i is the sum of x[j], negated if i & j has an odd number of ones") {
  for (int log2_n = 0; log2_n <= 9; ++log2_n) {
    const std::size_t n = std::size_t{1} << log2_n;
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(i * 37 % 101) - 50;
    std::vector<float> wanted(n);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        wanted[i] += std::popcount(i & j) % 2 == 0 ? x[j] : -x[j];
      }
    }
    for (const Kernels* row : all_kernels()) {
      CAPTURE(row->name);
      CAPTURE(n);
      std::vector<float> out = x;
      row->hadamard(out.data(), log2_n);
      CHECK(out == wanted);  // Sums of small integers are exact.
      row->hadamard(out.data(), log2_n);
      for (std::size_t i = 0; i < n; ++i) CHECK(out[i] == x[i] * static_cast<float>(n));
    }
  }
}

TEST_CASE("hadamard: rows agree for values that round, also for zeros of both signs") {
  for (int log2_n = 0; log2_n <= 17; ++log2_n) {
    const std::size_t n = std::size_t{1} << log2_n;
    std::vector<float> x = normal_values(n + 1, 5);
    for (std::size_t i = 0; i < n; i += 3) x[i] = i % 2 == 0 ? 0.0f : -0.0f;
    std::vector<float> reference = x;
    first_row().hadamard(reference.data() + 1, log2_n);  // Not aligned for vectors.
    for (const Kernels* row : all_kernels()) {
      CAPTURE(row->name);
      CAPTURE(n);
      std::vector<float> out = x;
      row->hadamard(out.data() + 1, log2_n);
      CHECK(equal_bits(out, reference));
    }
  }
}

TEST_CASE("flip_signs: every row flips the signs that the stream's bits say") {
  for (const std::size_t n : {0u, 1u, 7u, 8u, 9u, 31u, 33u, 1023u, 1024u, 1025u, 1031u, 65536u}) {
    const std::vector<float> x = normal_values(n, 6);
    std::vector<float> wanted(n);
    for (std::size_t i = 0; i < n; ++i) {
      const philox::Block block = philox::block_at(0x123456789a, 3, philox::counter_of(i / 32));
      const bool is_negative = (block.word[philox::word_of(i / 32)] >> i % 32 & 1) != 0;
      wanted[i] = is_negative ? -(x[i] * 0.3f) : x[i] * 0.3f;
    }
    for (const Kernels* row : all_kernels()) {
      CAPTURE(row->name);
      CAPTURE(n);
      std::vector<float> out = x;
      row->flip_signs(out.data(), n, 0.3f, 0x123456789a, 3);
      CHECK(equal_bits(out, wanted));
    }
  }
}

TEST_CASE("nearest: no other centroid is nearer, levels give the centroids, rows agree") {
  for (const Centroids& table : centroid_tables) {
    for (const std::size_t n : {0u, 1u, 7u, 15u, 16u, 17u, 31u, 1025u, 65537u}) {
      std::vector<float> x = normal_values(n, n + 7);
      for (std::size_t i = 3; i < n; i += 50) x[i] = i % 4 == 0 ? 0.0f : -0.0f;
      for (int i = 0; i + 1 < table.count && static_cast<std::size_t>(i) < n; ++i) {
        x[static_cast<std::size_t>(i)] = table.thresholds[i];
      }
      std::vector<std::int16_t> levels(n);
      const double sum = first_row().nearest(x.data(), n, table, levels.data());
      std::vector<float> values(n);
      first_row().centroids_of(levels.data(), n, table, values.data());
      double wanted = 0;
      for (std::size_t i = 0; i < n; ++i) {
        REQUIRE(levels[i] < table.count);
        REQUIRE(levels[i] >= -table.count);
        REQUIRE((levels[i] < 0) == std::signbit(x[i]));
        REQUIRE(std::signbit(values[i]) == std::signbit(x[i]));
        for (int m = 0; m < table.count; ++m) {
          const float other = std::copysign(table.values[m], x[i]);
          REQUIRE(std::fabs(x[i] - values[i]) <= std::fabs(x[i] - other) + 1e-6f);
        }
        wanted += static_cast<double>(x[i]) * values[i];
      }
      CHECK(std::fabs(sum - wanted) <= wanted * 1e-12);
      for (const Kernels* row : all_kernels()) {
        CAPTURE(row->name);
        CAPTURE(n);
        std::vector<std::int16_t> other(n);
        const double row_sum = row->nearest(x.data(), n, table, other.data());
        CHECK(std::memcmp(&row_sum, &sum, sizeof sum) == 0);
        CHECK(equal_bits(other, levels));
        std::vector<float> back(n);
        row->centroids_of(levels.data(), n, table, back.data());
        CHECK(equal_bits(back, values));
      }
    }
  }
  // A value at a threshold takes the larger centroid. Levels beyond the table use its low bits.
  const float x[] = {1.0f, -1.0f, 0.999f};
  const std::int16_t past[] = {8, -9, 32767, -32768, 9, 8, 8, 8};
  for (const Kernels* row : all_kernels()) {
    std::int16_t levels[3];
    CHECK(row->nearest(x, 3, centroid_tables[1], levels) == 1.5 + 1.5 + 0.5 * 0.999f);
    CHECK(levels[0] == 1);
    CHECK(levels[1] == -2);
    CHECK(levels[2] == 0);
    float out[8];
    row->centroids_of(past, 8, centroid_tables[2], out);
    CHECK(out[0] == 0.1f);
    CHECK(out[1] == -0.1f);
    CHECK(out[2] == 2.7f);
    CHECK(out[3] == -2.7f);
    CHECK(out[4] == 0.4f);
  }
}
