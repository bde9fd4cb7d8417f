// SPDX-License-Identifier: Apache-2.0
// Adds up the payloads of all ranks while they come. Each rank sends the n-th slice of its payload
// to all others at the same time; then all decode the blocks that are there. So a rank's memory is
// a slice of each other rank's payload, and not all payloads. All ranks make the same calls.
#pragma once

#include "client/site/rank/ranks.hpp"
#include "shared/base/async/parallel.hpp"
#include "shared/codec/payload/reader.hpp"
#include "shared/params/layout.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace fl::site {

/// A block of this rank's own payload, decoded.
using UseOwnBlock = std::function<void(const codec::Block&, std::span<const float>)>;

/// Adds the decoded payloads of all ranks to `sum`, block by block in the order of the ranks.
/// `lengths` has the length of each rank's payload as that rank told it, all of them of this layout
/// and by one codec, which makes at most `bytes_max`; `own` is this rank's. Calls `use_own`, if
/// given, with each block of `own`, on this thread. `lanes` decode and add; the sums have the same
/// bits with any number of them. A rank's memory is also a block of each payload. `slice_bytes` is
/// about what is sent of a payload at once. Throws RankFailure, also for a length that can't be,
/// before anything is sent, and for a payload that is damaged, as soon as its damaged part is
/// there.
void add_payloads(std::span<const std::byte> own, std::span<const std::int64_t> lengths,
                  std::uint64_t bytes_max, const Layout& layout, std::span<float> sum, Ranks& ranks,
                  Lanes& lanes, std::size_t slice_bytes, const UseOwnBlock& use_own = {});

}  // namespace fl::site
