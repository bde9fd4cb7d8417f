// SPDX-License-Identifier: Apache-2.0
// A 64-bit key for one block. The block's bytes contain it, so that the decoder makes the same
// random choices without knowing the seed.
#pragma once

#include "kernels/generic/philox.hpp"
#include "shared/codec/core/block_map.hpp"

#include <cstdint>

namespace fl::codec {

/// Keeps the Philox streams apart: a selector and a quantizer may code the same block, and
/// stochastic rounding uses the streams 0, 1, ... (the tensor's number).
enum class KeyFamily : std::uint64_t { selector = 1, quantizer = 2 };

/// The key follows from the seed, the family, the block's tensor and its first element.
[[nodiscard]] inline std::uint64_t block_key(std::uint64_t seed, KeyFamily family,
                                             const Block& block) {
  const std::uint64_t stream = (static_cast<std::uint64_t>(family) << 32) + block.tensor;
  const philox::Block words = philox::block_at(seed, stream, block.first);
  return std::uint64_t{words.word[1]} << 32 | words.word[0];
}

}  // namespace fl::codec
