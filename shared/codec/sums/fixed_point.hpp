// How a round's sums represent values: as integers, so that adding has no order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fl {

/// Values of magnitude below 2^range_log2, in steps of 2^-fraction_bits, with weights that sum to
/// at most weight_max. One value is rounded by at most 2^-(fraction_bits + 1), and so is a mean.
struct FixedPoint {
  int range_log2;
  int fraction_bits;
  std::uint64_t weight_max;
  bool operator==(const FixedPoint&) const = default;
};

inline constexpr std::uint64_t update_weight_max = (1ull << 32) - 1;  // Of one update.
inline constexpr std::uint64_t total_weight_max = 1ull << 40;         // Of all updates of a round.

/// The finest fixed point for updates to a model whose largest magnitude is `model_max`, when the
/// weights sum to `total_weight` (1 to total_weight_max; beyond that it is taken as the limit).
/// The range is eight times model_max and at least 4096, but never so wide that fewer than 10
/// fraction bits are left. fraction_bits is 10 to 39:
///   total weight up to 2^11: 39 (steps of 2e-12), 2^20: 30 (1e-9), 2^30: 20 (1e-6),
///                      2^40: 10 (1e-3)
/// for a model within 512. So give the weight that the round can really reach, not the limit.
/// With `norm_max` above 0, the largest L2 norm of an update so far, the range is sixteen times
/// that instead, where this is less: so the sums keep as many digits of small updates, as FedNova's
/// are, as of large ones. No value of a vector is above its norm, and few are near to it.
[[nodiscard]] FixedPoint choose_fixed_point(double model_max, std::uint64_t total_weight,
                                            double norm_max = 0);

/// The first value that is not below 2^range_log2 (NaN is not), or how many there are.
[[nodiscard]] std::size_t first_beyond(std::span<const float> values, int range_log2);

}  // namespace fl
