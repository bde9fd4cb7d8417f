// SPDX-License-Identifier: Apache-2.0
// The blocks of "lanes" (compressors/lanes.cpp), and the tallies in them, of which the server makes
// the next round's steps. After the format id:
//
//   40 lanes  u8 B, plus 128 with dither; u16 the step (lane_step.hpp); the tally: u64 squares, u32
//             clipped, u32 large; with dither u64 its key; the levels with S = 2^(B-1) - 1 as bit
//             fields
//   41 lanes  as 40, with entropy-coded levels
//   42 lanes  without a step: u64 squares; the values, multiples of 2^-24 from -8 to 8, as a block
//             of "lossless"
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/codec/core/block_map.hpp"
#include "shared/codec/core/lane_step.hpp"
#include "shared/codec/core/scratch.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fl::codec {

/// The most squares of one block without a step: larger sums count as this.
inline constexpr std::uint64_t wide_squares_max = std::uint64_t{1} << 50;

struct LaneHead {
  int bits = 0;
  LaneStep step;
  LaneTally tally;
  bool has_dither = false;
  std::uint64_t key = 0;  // The dither's.
};

/// Replaces `out` by a block of format 40 up to its levels.
void begin_lane_block(const LaneHead& head, std::vector<std::byte>& out);
/// The most bytes of a block before its levels, with its id.
inline constexpr std::size_t lane_head_bytes_max = 1 + 1 + 2 + 16 + 8;

/// The head of a block with a step, and the bytes of its levels. `body` is the block without its
/// id; it need not be trusted. The tally is without its number of values. Errors: corrupt.
struct ReadLaneHead {
  LaneHead head;
  Bytes levels;
};
[[nodiscard]] Result<ReadLaneHead> read_lane_head(Bytes body);

/// Values without a step are multiples of 2^lane_wide_log2, at most lane_wide_max of them.
inline constexpr int lane_wide_log2 = -24;
inline constexpr std::int32_t lane_wide_max = 1 << 27;

/// out = x in multiples of 2^-24, at most 8. Both have the same size.
void round_to_wide(std::span<const float> x, std::span<float> out);

/// With d = lane_dither_bits(bits), the dither u is an odd multiple of 2^-(d + 1), between -1/2 and
/// 1/2, and a value is (level - u) steps.
[[nodiscard]] constexpr int lane_dither_bits(int bits) { return 19 - bits; }
/// u * 2^(d + 1), from a random word of the dither's stream.
[[nodiscard]] constexpr std::int32_t lane_dither_of(std::uint32_t word, int bits) {
  const int random = lane_dither_bits(bits);
  return static_cast<std::int32_t>(word >> (32 - random)) * 2 + 1 - (1 << random);
}

/// The values of a payload's block, which are added up together.
struct LaneRun {
  Block block{};
  std::uint32_t values = 0;  // As many as the block has elements, unless a selector chooses some.
  int bits = 0;              // Levels are from -S to S, in so many bits.
  LaneStep step = {};        // None: multiples of 2^-24, at most lane_wide_max of them.
  bool has_dither = false;   // Only with a step.
  bool is_selected = false;  // By randk, with the shared seed.
  bool is_bare = false;      // The payload has the values as they are (block_map.hpp).

  /// The largest magnitude of what read_lane_integers() gives.
  [[nodiscard]] std::int32_t most() const {
    return step.is_set() ? lane_levels(bits) : lane_wide_max;
  }
};

/// Reads the integers that stand for a run's values: levels, or multiples of 2^-24. `block`: the
/// payload's block, which need not be trusted. Errors: corrupt, also if it is coded in another way
/// than the run says.
[[nodiscard]] Result<void> read_lane_integers(Bytes block, const LaneRun& run,
                                              std::span<std::int32_t> out, DecodeScratch& scratch);

/// Adds the tally of a block of a payload, of `elements` elements: if its step is `step`; for no
/// step, if it has none. Blocks of other codecs, and of selectors that do not draw by a seed, add
/// nothing. The block need not be trusted. Errors: corrupt.
[[nodiscard]] Result<void> add_lane_tally(Bytes block, std::size_t elements, LaneStep step,
                                          LaneTally& sum);

}  // namespace fl::codec
