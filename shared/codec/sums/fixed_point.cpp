// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/sums/fixed_point.hpp"

#include "shared/base/error.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace fl {

namespace {

constexpr int range_log2_min = 12;
constexpr int fraction_bits_min = 10;
constexpr int narrow_range_log2_min = -60;
constexpr int norm_headroom_log2 = 4;

// add_fixed() converts exactly if |x| * 2^fraction_bits < 2^51.
constexpr int product_log2_max = 51;

}  // namespace

// Sums do not overflow: |x| < 2^range_log2, so a fixed-point value is at most
//   2^(range_log2 + fraction_bits),
// and a sum with weights of 2^weight_log2 in all is at most
//   2^(range_log2 + fraction_bits + weight_log2) <= 2^62.
// Partial sums have the same bound.
FixedPoint choose_fixed_point(double model_max, std::uint64_t total_weight, double norm_max) {
  FL_ASSERT(std::isfinite(model_max) && model_max >= 0 && norm_max >= 0);
  const std::uint64_t weight_max =
      std::bit_ceil(std::clamp<std::uint64_t>(total_weight, 1, total_weight_max));
  const int weight_log2 = std::countr_zero(weight_max);
  const int wanted = model_max > 0 ? static_cast<int>(std::ceil(std::log2(model_max))) + 3 : 0;
  const int total_log2 = std::min(product_log2_max, 62 - weight_log2);  // Range and fraction.
  int range_log2 = std::clamp(wanted, range_log2_min, total_log2 - fraction_bits_min);
  if (norm_max > 0) {
    const int narrow = std::ilogb(norm_max) + 1 + norm_headroom_log2;
    range_log2 = std::min(range_log2, std::max(narrow, narrow_range_log2_min));
  }
  return {
      .range_log2 = range_log2, .fraction_bits = total_log2 - range_log2, .weight_max = weight_max};
}

std::size_t first_beyond(std::span<const float> values, int range_log2) {
  const double limit = std::ldexp(1.0, range_log2);
  const auto is_beyond = [limit](float v) { return !(std::fabs(v) < limit); };
  return static_cast<std::size_t>(std::ranges::find_if(values, is_beyond) - values.begin());
}

}  // namespace fl
