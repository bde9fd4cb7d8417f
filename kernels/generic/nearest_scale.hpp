// SPDX-License-Identifier: Apache-2.0
// Finds the scale for rounding values to the nearest of a few levels, scale / levels apart, with
// the least square error (Max 1960, "Quantizing for minimum distortion"). It tries scales in steps
// of 2^-1/4 on a histogram of the values' magnitudes.
//
// Pure; any thread. The functions have internal linkage on purpose; see philox.hpp.
#pragma once

#include "kernels/generic/philox.hpp"

#include <cstddef>
#include <cstdint>

namespace fl::nearest_scale {

/// With more levels than this, a search gains little over the largest |x| as the scale.
inline constexpr std::int32_t levels_max = 15;
/// The range of scales for which 1 / step is finite. Smaller values are not worth levels.
inline constexpr float least_scale = 0x1p-100f;
inline constexpr float largest_scale = 0x1p121f;

/// The bins of the histogram of |x|. With step = largest / (bins - 1), where `largest` is the
/// largest |x|, the bin of x is round(|x| / step), at most the last one.
inline constexpr std::size_t bins = 256;
/// How many scales are tried. Each is `ratio` = 2^-1/4 times the one before. The first is the
/// largest |x| and the last 1/256 of it; in a block of 65,536 no value is above 256 root mean
/// squares.
inline constexpr int tried = 33;
inline constexpr double ratio = 0x1.ae89f995ad3adp-1;

/// For each bin: how many values are in it or above it, and the sum of their bins.
struct Tails {
  std::uint32_t count[bins + 1];
  std::uint64_t sum[bins + 1];
};

/// Before the call, `count` is how many values are in each bin alone, with a 0 at the end.
FL_HOST_DEVICE static inline void add_tails(Tails& tails) {
  tails.sum[bins] = 0;
  for (std::size_t b = bins; b-- > 0;) {
    tails.sum[b] = tails.sum[b + 1] + std::uint64_t{tails.count[b]} * b;
    tails.count[b] += tails.count[b + 1];
  }
}

/// Scale `number` of those tried, as a share of the largest |x|.
FL_HOST_DEVICE static inline double share_of(int number) {
  double share = 1;
  for (int i = 0; i < number; ++i) share *= ratio;
  return share;
}

/// The sum of the squared errors, minus the sum of the squared values, in units of bins. The scale
/// is this share of the largest |x|. Level l starts at (l - 1/2) steps, and l^2 is the sum of 2k -
/// 1 over k from 1 to l.
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

/// The share with the least error. left[number] is squares_left() of share_of(number).
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
