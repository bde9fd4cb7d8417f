// SPDX-License-Identifier: Apache-2.0
// How a round's sums represent values: as 64-bit integers, so that the order of adding does not
// matter. All sums of a range (up to 65,536 elements of a tensor; or a tensor's factors, or a
// sketch) are multiples of the same power of two, their unit. The unit follows from two facts about
// the updates that count, and from nothing else: the largest exponent of their values in this
// range, and their total weight. So the sums have the same bits in any order, after any restart.
//
// Both facts are known only when the round closes. Until then a range is summed in a unit that the
// last round, or the first update, suggests. What was summed in another unit than the final one is
// added again (Accumulator::settle()), which is rare: a unit serves values within a factor of 256.
//
// The error of a mean: each update's product of weight and value is rounded to the unit once, by at
// most half of it. For n updates the mean is off by at most n * 2^-54 of the largest value in the
// range, which is below 2^-40 for 16,384 updates. The idea of a grid that depends only on the
// largest magnitude is that of reproducible summation: Demmel, Nguyen 2015, "Parallel reproducible
// summation".
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace fl::server {

/// The largest weight of one update, and of all updates of a round together.
inline constexpr std::uint64_t update_weight_max = std::uint64_t{1} << 53;
inline constexpr std::uint64_t total_weight_max = std::numeric_limits<std::int64_t>::max();

/// The exponent of 0: below those of all floats.
inline constexpr int exponent_of_zero = -1000;

/// The least e with |x| < 2^e for a finite x.
[[nodiscard]] int exponent_above(float x);

/// The base-2 logarithm of the unit for values below 2^exponent in magnitude, with weights that sum
/// to `total_weight`. All sums, and what rounding adds to them, stay below 2^63 units.
[[nodiscard]] int unit_log2_of(int exponent, std::uint64_t total_weight);

/// The unit of one range's sums, and the figures that decide the final unit. Not safe for several
/// threads: the lock of its sums guards it too.
class SumRange {
 public:
  /// Call it before a product weight * value with |value| < 2^exponent is added. `total_weight`: of
  /// all updates so far, with this one. `expected_weight`: the total weight that the round will
  /// probably have. Returns false if the unit is too small for it: then nothing may be added before
  /// begin_again().
  [[nodiscard]] bool admit(int exponent, std::uint64_t total_weight, std::uint64_t expected_weight);

  /// Notes that the update counts, whose values here are below 2^exponent.
  void count(int exponent) { counted_ = exponent > counted_ ? exponent : counted_; }

  /// Call it when all updates were added. False: the sums are those of the updates that count, in
  /// the final unit. True: the range has its final unit now, and the caller sets the sums to 0 and
  /// adds all updates again. Then it is also true at the next call, as the caller may have failed.
  [[nodiscard]] bool begin_again(std::uint64_t total_weight);
  /// Whether begin_again() was true in this round.
  [[nodiscard]] bool is_again() const { return is_again_; }

  [[nodiscard]] int unit_log2() const { return unit_log2_; }
  /// Whether the sums lack values, so that nothing is added or taken back any more.
  [[nodiscard]] bool is_stale() const { return is_stale_; }

  /// Begins a new round. The next unit is probably like the last one.
  void reset() {
    if (counted_ != exponent_of_zero) expected_ = counted_;
    seen_ = counted_ = exponent_of_zero;
    unit_log2_ = 0;
    is_stale_ = is_again_ = false;
  }

 private:
  int unit_log2_ = 0;  // Has no meaning before the first admit().
  int seen_ = exponent_of_zero;
  int counted_ = exponent_of_zero;
  int expected_ = exponent_of_zero;  // The exponent of the last round.
  bool is_stale_ = false;
  bool is_again_ = false;
};

/// The weights of a round's updates. Any thread.
struct RoundWeight {
  std::uint64_t expected = 1;  // Only speed depends on it.
  /// The weight of the updates that are in the sums, or on their way.
  std::atomic<std::uint64_t> total = 0;
};

/// One update on its way into the sums, or out of them. One thread.
class Adding {
 public:
  enum class Way {
    in,
    out,    // The update was added in part and is taken back.
    again,  // Adds only to the ranges where begin_again() was true.
  };
  Adding(Way way, std::uint64_t weight, const RoundWeight& round)
      : way_(way),
        weight_(way == Way::out ? -static_cast<std::int64_t>(weight)
                                : static_cast<std::int64_t>(weight)),
        round_(&round) {}

  /// Whether values of the update, of which `max_abs` is the largest magnitude, are to be added to
  /// the sums of this range. Called once for each run of values, with the range's lock held.
  [[nodiscard]] bool enter(SumRange& range, float max_abs);
  /// The factor that scales a value to units of the range.
  [[nodiscard]] double factor(const SumRange& range) const;
  /// sums[i] += the weighted values[i], where enter() says so. With the range's lock held.
  void add(SumRange& range, float max_abs, std::span<const float> values, std::int64_t* sums);

  /// The ranges that the update entered, each with the exponent of its values there.
  using Entered = std::vector<std::pair<SumRange*, int>>;
  [[nodiscard]] Entered take_entered() { return std::move(entered_); }

 private:
  Way way_;
  std::int64_t weight_;
  const RoundWeight* round_;
  Entered entered_;
};

/// The factor that scales a sum in units to a mean: 2^unit_log2 / divisor.
[[nodiscard]] double mean_factor_of(double divisor, const SumRange& range);

}  // namespace fl::server
