// SPDX-License-Identifier: Apache-2.0
// The steps of "lanes" (shared/codec/compressors/lanes.cpp): each round's follow from what the
// updates of the round before were like. Only sums over all clients go into them, so a server that
// can't read single updates can choose them too. Pure functions; any thread.
#pragma once

#include "shared/codec/core/lane_step.hpp"

#include <span>

namespace fl::server {

/// The step after `before`, for levels of `bits` bits. `tally`: that of all values of a tensor in
/// the updates with this step. A step grows or shrinks at most twofold from round to round, so that
/// a single odd round does no harm; the first one is free. Without values nothing changes.
[[nodiscard]] codec::LaneStep next_step(int bits, codec::LaneStep before,
                                        const codec::LaneTally& tally);

/// next_step() of each tensor; none for a tensor with 0 bits (Codec::lane_bits()). All arguments
/// have one element for each tensor.
[[nodiscard]] codec::LaneSteps next_steps(std::span<const int> bits, const codec::LaneSteps& before,
                                          std::span<const codec::LaneTally> tallies);

}  // namespace fl::server
