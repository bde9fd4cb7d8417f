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
#include "shared/codec/core/lane_step.hpp"

#include <cstddef>
#include <cstdint>
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

/// Adds the tally of a block of a payload, of `elements` elements: if its step is `step`; for no
/// step, if it has none. Blocks of other codecs, and of selectors that do not draw by a seed, add
/// nothing. The block need not be trusted. Errors: corrupt.
[[nodiscard]] Result<void> add_lane_tally(Bytes block, std::size_t elements, LaneStep step,
                                          LaneTally& sum);

}  // namespace fl::codec
