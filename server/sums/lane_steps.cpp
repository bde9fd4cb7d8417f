// SPDX-License-Identifier: Apache-2.0
#include "server/sums/lane_steps.hpp"

#include <algorithm>
#include <cmath>

namespace fl::server {

namespace {

using codec::LaneStep;
using codec::LaneTally;

/// The share of the values that may lie beyond the last level before the step grows. Normal values
/// stay below it, and so do Laplace's from 6 bits on.
double clipped_share_max(int bits) { return bits >= 6 ? 0.001 : 0.02; }

}  // namespace

LaneStep next_step(int bits, LaneStep before, const LaneTally& tally) {
  if (tally.values == 0 || tally.squares == 0) return before;
  const auto values = static_cast<double>(tally.values);
  const double squares =
      static_cast<double>(tally.squares) * codec::lane_squares_unit(bits, before);
  const LaneStep fitting = codec::fitting_step(bits, std::sqrt(squares / values));
  if (!before.is_set()) return fitting;
  const LaneStep twice = LaneStep::at_least(2 * before.value());
  const auto is_too_much = [&](std::uint64_t beyond) {
    return static_cast<double>(beyond) > clipped_share_max(bits) * values;
  };
  // Clipped values make the squares too small, so they don't show how far it must grow.
  if (is_too_much(tally.clipped)) return twice;
  if (fitting >= before) return std::min(fitting, twice);
  // Half the step would clip what is large now.
  if (is_too_much(tally.large)) return before;
  return std::max(fitting, LaneStep::at_least(before.value() / 2));
}

codec::LaneSteps next_steps(std::span<const int> bits, const codec::LaneSteps& before,
                            std::span<const LaneTally> tallies) {
  FL_ASSERT(bits.size() == before.size() && bits.size() == tallies.size());
  codec::LaneSteps steps(bits.size());
  for (std::size_t t = 0; t < bits.size(); ++t) {
    if (bits[t] > 0) steps[t] = next_step(bits[t], before[t], tallies[t]);
  }
  return steps;
}

}  // namespace fl::server
