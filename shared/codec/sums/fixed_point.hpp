// SPDX-License-Identifier: Apache-2.0
// How a round's sums represent values: as integers, so that the order of adding does not matter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fl {

/// Magnitudes below 2^range_log2 in steps of 2^-fraction_bits, with weights that sum to at most
/// weight_max. A value is rounded by at most 2^-(fraction_bits + 1), and so is a weighted mean.
struct FixedPoint {
  int range_log2;
  int fraction_bits;
  std::uint64_t weight_max;
  bool operator==(const FixedPoint&) const = default;
};

inline constexpr std::uint64_t update_weight_max = (1ull << 32) - 1;  // Of one update.
inline constexpr std::uint64_t total_weight_max = 1ull << 40;         // Of all updates of a round.

/// The finest fixed point for updates of a model whose largest magnitude is `model_max`, if the
/// weights sum to `total_weight` (clamped to 1 to total_weight_max).
///
/// The range is eight times model_max and at least 4096, but never so wide that fewer than 10
/// fraction bits are left. For a model within 512, fraction_bits is 10 to 39:
///   total weight up to 2^11: 39 (steps of 2e-12), 2^20: 30 (1e-9), 2^30: 20 (1e-6),
///                      2^40: 10 (1e-3)
/// So pass the weight that the round can really reach, not the limit.
///
/// If `norm_max` is above 0, it is the largest L2 norm of an update so far, and the range is at
/// most sixteen times norm_max. So the sums keep as many digits of small updates, such as those of
/// FedNova, as of large ones. No value of a vector is above its norm, and few are near it.
[[nodiscard]] FixedPoint choose_fixed_point(double model_max, std::uint64_t total_weight,
                                            double norm_max = 0);

/// The index of the first value whose magnitude is not below 2^range_log2, or NaN; values.size() if
/// there is none.
[[nodiscard]] std::size_t first_beyond(std::span<const float> values, int range_log2);

}  // namespace fl
