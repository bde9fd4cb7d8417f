// SPDX-License-Identifier: Apache-2.0
#include "server/sums/sum_range.hpp"

#include "kernels/kernels.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace fl::server {

namespace {

// Units change in steps of this many powers of two.
constexpr int step_log2 = 8;

// The largest sum in units. There is room for as much again, which rounding can't fill.
constexpr int sum_log2_max = 62;

int weight_log2(std::uint64_t weight) { return static_cast<int>(std::bit_width(weight)); }

}  // namespace

int exponent_above(float x) { return x == 0 ? exponent_of_zero : std::ilogb(x) + 1; }

// A sum of weight * value is below 2^(exponent + weight_log2), so in units below
//   2^(exponent + weight_log2 - unit_log2) <= 2^sum_log2_max.
int unit_log2_of(int exponent, std::uint64_t total_weight) {
  const int top = exponent + weight_log2(total_weight);
  const int rounded = top + ((-top % step_log2) + step_log2) % step_log2;
  return rounded - sum_log2_max;
}

bool SumRange::admit(int exponent, std::uint64_t total_weight, std::uint64_t expected_weight) {
  if (is_stale_) return false;
  if (seen_ == exponent_of_zero) {
    unit_log2_ =
        unit_log2_of(std::max(exponent, expected_), std::max(total_weight, expected_weight));
  }
  seen_ = std::max(seen_, exponent);
  // total_weight is at least the weight of all updates that were added here, and no value is above
  // seen_.
  is_stale_ = seen_ + weight_log2(total_weight) > unit_log2_ + sum_log2_max;
  return !is_stale_;
}

bool SumRange::begin_again(std::uint64_t total_weight) {
  const bool is_empty = counted_ == exponent_of_zero;
  const int final_unit = is_empty ? unit_log2_ : unit_log2_of(counted_, total_weight);
  if (!is_stale_ && !is_again_ && unit_log2_ == final_unit) return false;
  unit_log2_ = final_unit;
  is_stale_ = false;
  is_again_ = true;
  return true;
}

bool Adding::enter(SumRange& range, float max_abs) {
  const int exponent = exponent_above(max_abs);
  if (exponent == exponent_of_zero) return false;
  switch (way_) {
    case Way::out: return !range.is_stale();
    case Way::again: return range.is_again();
    case Way::in: break;
  }
  entered_.emplace_back(&range, exponent);
  return range.admit(exponent, round_->total, round_->expected);
}

double Adding::factor(const SumRange& range) const {
  return std::ldexp(static_cast<double>(weight_), -range.unit_log2());
}

void Adding::add(SumRange& range, float max_abs, std::span<const float> values,
                 std::int64_t* sums) {
  if (enter(range, max_abs))
    kernels().add_rounded(sums, values.data(), values.size(), factor(range));
}

double mean_factor_of(double divisor, const SumRange& range) {
  return std::ldexp(1 / divisor, range.unit_log2());
}

}  // namespace fl::server
