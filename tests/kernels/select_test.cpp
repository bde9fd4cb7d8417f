// SPDX-License-Identifier: Apache-2.0
// Selection of the largest magnitudes: it selects the same elements as sorting, for any ties and
// any parts of the vector.
#include "kernels/generic/select.hpp"
#include "kernels/generic/philox.hpp"
#include "kernels/kernels.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

using namespace fl;

namespace {

using Indices = std::vector<std::uint32_t>;

// Selects the k largest magnitudes by sorting; of equal ones the first.
Indices by_sorting(const std::vector<float>& x, std::size_t k) {
  Indices order(x.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(
      order, [&](std::uint32_t a, std::uint32_t b) { return std::fabs(x[a]) > std::fabs(x[b]); });
  order.resize(k);
  std::ranges::sort(order);
  return order;
}

// Selects them by find_largest() and select_largest(), with x cut into parts of `part` elements.
Indices by_selection(const std::vector<float>& x, std::size_t k, std::size_t part) {
  std::vector<std::span<const float>> runs;
  for (std::size_t begin = 0; begin < x.size(); begin += part) {
    runs.push_back(std::span(x).subspan(begin, std::min(part, x.size() - begin)));
  }
  Cutoff cutoff = find_largest(runs, k);
  Indices all;
  for (const auto& run : runs) {
    Indices some(run.size());  // Exact size, for ASan.
    some.resize(select_largest(run, cutoff, some.data()));
    for (const std::uint32_t index : some) {
      all.push_back(index + static_cast<std::uint32_t>(run.data() - x.data()));
    }
  }
  CHECK(cutoff.ties == 0);
  return all;
}

std::vector<std::vector<float>> vectors(std::size_t n) {
  std::vector<float> normal(n);
  kernels().gaussian(1, n, 0, normal.data(), n);
  std::vector<float> tied = normal;  // Only seven different magnitudes.
  for (float& v : tied) v = std::clamp(std::round(v * 2), -6.0f, 6.0f) * 0.25f;
  std::vector<float> near = normal;  // Only the last digits differ.
  for (float& v : near) v = std::copysign(1 + std::round(std::fabs(v) * 8) * 0x1p-23f, v);
  std::vector<float> extreme = normal;
  constexpr float all[] = {0.0f, -0.0f, std::numeric_limits<float>::max(), 1e-45f, -1e-45f};
  for (std::size_t i = 0; i < n; i += 2) extreme[i] = all[i / 2 % std::size(all)];
  return {normal, tied, near, extreme, std::vector<float>(n, -2.5f), std::vector<float>(n)};
}

}  // namespace

TEST_CASE("every row selects the same elements as sorting, with ties and in parts") {
  const Kernels& chosen = kernels();
  for (const Kernels* row : all_kernels()) {
    CAPTURE(row->name);
    force_kernels(*row);
    for (const std::size_t n : {1u, 2u, 15u, 16u, 17u, 1000u, 20'000u, 100'000u}) {
      for (const auto& x : vectors(n)) {
        for (const std::size_t k : {std::size_t{1}, n / 100 + 1, n / 10 + 1, n / 2 + 1, n}) {
          const Indices expected = by_sorting(x, k);
          CHECK(by_selection(x, k, n) == expected);
          CHECK(by_selection(x, k, 37) == expected);
        }
      }
    }
  }
  force_kernels(chosen);
}

TEST_CASE("find_at_least: every row finds all large values, for every length") {
  for (const Kernels* row : all_kernels()) {
    CAPTURE(row->name);
    for (const std::size_t n : {0u, 1u, 15u, 16u, 17u, 31u, 32u, 33u, 1000u}) {
      for (const auto& x : vectors(n)) {
        for (const float least : {0.0f, 0.3f, 1.5f, 2.5f, 1e30f}) {
          Indices expected;
          for (std::uint32_t i = 0; i < n; ++i) {
            if (std::fabs(x[i]) >= least) expected.push_back(i);
          }
          Indices found(n);  // Exact size, for ASan.
          found.resize(
              row->find_at_least(x.data(), n, std::bit_cast<std::uint32_t>(least), found.data()));
          CHECK(found == expected);
        }
      }
    }
  }
}

TEST_CASE("a misleading sample does not change the result") {
  // The sampled values are much larger, or much smaller, than all others.
  for (const float seen : {1000.0f, 0.001f}) {
    std::vector<float> x(100'000);
    kernels().gaussian(1, 2, 0, x.data(), x.size());
    for (std::size_t i = 0; i < x.size(); i += 251) x[i] *= seen;
    for (const std::size_t k : {1u, 100u, 1000u}) {
      CHECK(by_selection(x, k, x.size()) == by_sorting(x, k));
    }
  }
}

TEST_CASE("words are selected by their lowest 31 bits") {
  const std::vector<std::uint32_t> words = {5, 0x80000007, 7, 0x80000000, 6, 0xffffffff};
  Cutoff cutoff = find_largest(words, 2);
  CHECK(cutoff == Cutoff{.magnitude = 7, .ties = 1});
  Indices indices(words.size());
  REQUIRE(select_largest(words, cutoff, indices.data()) == 2);
  CHECK(indices[0] == 1);
  CHECK(indices[1] == 5);
}
