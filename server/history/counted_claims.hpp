// SPDX-License-Identifier: Apache-2.0
// Bounds how much a figure that a member claims (a loss, a metric, a weight, steps) counts in a
// mean of several members, by what the others claim: so no single member makes the mean what it
// likes. The history's views `evaluation` and `codec_summary` do the same (schema.cpp). The tables
// keep the claims as they were made. Pure functions of the claims, whatever their order; any
// thread.
//
// - A figure counts as at most 100 times the median of all magnitudes, in both directions. Up to 1
//   it counts as it is.
// - The number of examples counts as at most 10 times the median.
// - The weight for an example counts as at most 4 times the median, of two members 4 times the
//   smaller. Up to 2 it counts as it is.
// The first two need three members or more: fewer say nothing about one of them. Of an even number
// the larger middle one is the median.
#pragma once

#include "shared/params/metric.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace fl::server {

inline constexpr std::size_t claims_to_judge_min = 3;
/// A figure counts as at most this many times the median magnitude.
inline constexpr double claimed_figure_ratio = 100;
/// A figure up to this always counts as it is: fractions do.
inline constexpr double claimed_figure_always = 1;
/// No figure counts as more than this.
inline constexpr double claimed_figure_max = 0x1p127;
/// A number of examples counts as at most this many times the median.
inline constexpr double claimed_examples_ratio = 10;
/// The weight for an example counts as at most this many times the median.
inline constexpr double claimed_weight_ratio = 4;
/// The weight for an example up to this always counts as it is: that of F1's counts does.
inline constexpr double claimed_weight_always = 2;

/// The largest magnitude that one of these figures counts with. Figures that are not finite are
/// left out.
[[nodiscard]] double figure_limit(std::span<const double> figures);
/// The figure, cut to this magnitude.
[[nodiscard]] double counted_figure(double figure, double limit);

struct Claim {
  double value = 0;     // Not finite: the member has none, and the claim is left out.
  double weight = 0;    // Among the values of other members; 0: the number of examples.
  double examples = 0;  // Above 0.
};
/// The values of one metric, as they count.
[[nodiscard]] std::vector<Weighted> counted_claims(std::span<const Claim> claims);

}  // namespace fl::server
