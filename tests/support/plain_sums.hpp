// SPDX-License-Identifier: Apache-2.0
// The sums of a round by their definition (server/sums/sum_range.hpp): a second, simple and
// slow implementation for the tests. It keeps all updates, and begins to add when it knows them
// all.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace fl::testing {

/// The weighted sums of runs of values that share a unit.
struct PlainSums {
  __extension__ typedef __int128 Wide;

  struct Update {
    std::vector<float> values;
    std::uint64_t weight;
  };
  std::vector<Update> updates;

  void add(std::span<const float> values, std::uint64_t weight) {
    updates.push_back({{values.begin(), values.end()}, weight});
  }

  /// The exponent of the unit: the least multiple of 8, less 62, that no sum can exceed by 2^62.
  [[nodiscard]] int unit_log2(std::uint64_t total_weight) const {
    double largest = 0;
    for (const Update& update : updates)
      for (const float v : update.values) largest = std::max(largest, std::fabs(double{v}));
    if (largest == 0) return 0;
    int top = 0;
    while (std::ldexp(1.0, top) > largest) --top;
    while (std::ldexp(1.0, top) <= largest) ++top;
    for (std::uint64_t weight = total_weight; weight > 0; weight /= 2) ++top;
    while (top % 8 != 0) ++top;
    return top - 62;
  }

  /// Sums divided by `divisor`, as many as the longest update has. `total_weight`: of the whole
  /// round.
  [[nodiscard]] std::vector<float> mean(std::uint64_t total_weight, double divisor) const {
    std::vector<Wide> sums;
    const int unit = unit_log2(total_weight);
    for (const Update& update : updates) {
      sums.resize(std::max(sums.size(), update.values.size()));
      for (std::size_t i = 0; i < update.values.size(); ++i) {
        const double product = double{update.values[i]} * static_cast<double>(update.weight);
        sums[i] += static_cast<Wide>(std::nearbyint(std::ldexp(product, -unit)));
      }
    }
    std::vector<float> out(sums.size());
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<float>(static_cast<double>(sums[i]) * std::ldexp(1 / divisor, unit));
    return out;
  }
};

}  // namespace fl::testing
