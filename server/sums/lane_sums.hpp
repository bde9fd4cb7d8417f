// SPDX-License-Identifier: Apache-2.0
// The mean of a round's updates, from the sums of their levels alone: what a server makes that has
// unmasked the sum of all words and can read no single update. Bit for bit the mean that the
// accumulator makes of the decoded updates: both sums are exact.
#pragma once

#include "shared/codec/blocks/lane_block.hpp"
#include "shared/secure/lane_words.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace fl::server {

/// A client whose update is in the sums.
struct LaneGiver {
  std::uint64_t seed;    // From which its dither is drawn: the seed of its task.
  std::uint64_t weight;  // In the sums.
};

/// Immutable; any thread.
class LaneSums {
 public:
  /// `words`: the sums of all clients' words. `shared_seed`:
  /// that of the round. The givers' weights sum to layout.weight_sum() at most.
  LaneSums(secure::LaneWords layout, std::vector<std::uint64_t> words,
           std::vector<LaneGiver> givers, std::uint64_t shared_seed);

  /// Fills `out`, which has the elements of a block of the payloads (a run), with the mean.
  void mean_of_run(std::size_t run, std::span<float> out) const;
  [[nodiscard]] std::size_t runs() const { return layout_.runs().size(); }
  [[nodiscard]] const codec::Block& block(std::size_t run) const {
    return layout_.runs()[run].block;
  }

  /// The tally of each tensor, as the next round's steps need it (lane_steps.hpp).
  [[nodiscard]] std::vector<codec::LaneTally> tallies() const;
  /// The clients' mean training loss.
  [[nodiscard]] double mean_loss() const;

 private:
  secure::LaneWords layout_;
  std::vector<std::uint64_t> words_;
  std::vector<LaneGiver> givers_;
  std::uint64_t weights_ = 0;  // Of all givers.
  std::uint64_t shared_seed_;
};

}  // namespace fl::server
