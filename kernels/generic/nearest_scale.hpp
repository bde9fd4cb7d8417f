// The scale with which a few levels, of scale / levels each, lose the least squares of values that
// are rounded to the nearest of them (Max 1960, "Quantizing for minimum distortion"). It is looked
// for in a histogram of the values' magnitudes, among scales in steps of 2^-1/4.
//
// Internal linkage on purpose; see philox.hpp.
#pragma once

#include "kernels/generic/philox.hpp"

#include <cstddef>
#include <cstdint>

namespace fl::nearest_scale {

/// With more levels than that, the largest value as the scale costs little.
inline constexpr std::int32_t levels_max = 15;
/// Scales for which 1 / step is finite; what is smaller is not worth levels.
inline constexpr float least_scale = 0x1p-100f;
inline constexpr float largest_scale = 0x1p121f;

/// Of |x|, up to its largest. A value's bin is round(|x| / step), at most the last one, with
/// step = largest / (bins - 1).
inline constexpr std::size_t bins = 256;
/// Each is 2^-1/4 of the one before, the last 1/256 of the largest value: in a block none is more
/// than 256 times the mean square's root.
inline constexpr int tried = 33;
inline constexpr double ratio = 0x1.ae89f995ad3adp-1;

/// How many values lie in each bin or above it, and their sum in bins.
struct Tails {
  std::uint32_t count[bins + 1];
  std::uint64_t sum[bins + 1];
};

/// `count` holds how many lie in each bin alone, and a 0 behind them.
FL_HOST_DEVICE static inline void add_tails(Tails& tails) {
  tails.sum[bins] = 0;
  for (std::size_t b = bins; b-- > 0;) {
    tails.sum[b] = tails.sum[b + 1] + std::uint64_t{tails.count[b]} * b;
    tails.count[b] += tails.count[b + 1];
  }
}

FL_HOST_DEVICE static inline double share_of(int number) {
  double share = 1;
  for (int i = 0; i < number; ++i) share *= ratio;
  return share;
}

/// The squares that levels of this share of the largest value as their scale leave of all values,
/// less the values' own squares. Level l begins at (l - 1/2) steps, and its square is the sum of
/// 2k - 1 over k up to l.
FL_HOST_DEVICE static inline double squares_left(const Tails& tails, double share,
                                                 std::int32_t levels) {
  const double step = share * static_cast<double>(bins - 1) / levels;
  double sums = 0;
  double squares = 0;
  for (std::int32_t level = 1; level <= levels; ++level) {
    const auto bin = static_cast<std::size_t>((level - 0.5) * step) + 1;
    sums += static_cast<double>(tails.sum[bin]);
    squares += static_cast<double>(tails.count[bin]) * (2 * level - 1);
  }
  return step * (step * squares - 2 * sums);
}

/// The share of the largest value that leaves the least; `left`: what each leaves.
FL_HOST_DEVICE static inline double best_share(const double* left) {
  int best = 0;
  double least = 0;
  for (int number = 0; number < tried; ++number) {
    if (left[number] >= least) continue;
    least = left[number];
    best = number;
  }
  return share_of(best);
}

}  // namespace fl::nearest_scale
