// SPDX-License-Identifier: Apache-2.0
// Differential privacy's accountant: computes the epsilon, for a given delta, that several noisy
// releases have together (Dwork and Roth 2014), from the whole distribution of the privacy loss.
// Participants are drawn by secret coins, each for itself in each release; neighbours differ in one
// that is there or not. Pure; any thread.
#pragma once

#include "shared/privacy/privacy_loss.hpp"

#include <cstdint>
#include <optional>
#include <span>

namespace fl::privacy {

/// Below it the transforms' rounding shows: epsilon comes out too large where participants are
/// drawn in many releases (by 4 % for 10,000 of them with a delta of 1e-12).
inline constexpr double delta_min = 1e-9;

/// `count` releases of one mechanism.
struct Releases {
  Mechanism mechanism;
  std::uint64_t count = 1;
};

/// The epsilon of all releases together. Infinite, if there is none for this delta. Never below the
/// true value by more than rounding, nor above it by more than one in ten thousand. Takes up to
/// seconds where participants are drawn, and no time where all rates are 1. Requires: delta_min <=
/// delta < 1.
[[nodiscard]] double epsilon_of(std::span<const Releases> releases, double delta);

/// The smallest noise multiplier, to one in a thousand, with which so many releases stay within
/// epsilon. None, if it is above noise_max. Requires as epsilon_of(), epsilon > 0, count > 0.
inline constexpr double noise_max = 1e8;
[[nodiscard]] std::optional<double> noise_for(double epsilon, double delta, double sampling_rate,
                                              std::uint64_t count);

}  // namespace fl::privacy
