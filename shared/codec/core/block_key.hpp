// A 64-bit key for one block, which the block carries, so that its decoder makes the same random
// choices without knowing the seed.
#pragma once

#include "kernels/generic/philox.hpp"
#include "shared/codec/core/block_map.hpp"

#include <cstdint>

namespace fl {

/// Streams of their own, apart from those of the words by which quantizers round (the tensors'
/// numbers) and from each other's, where two may code one block.
enum class KeyFamily : std::uint64_t { selector = 1, quantizer = 2 };

[[nodiscard]] inline std::uint64_t block_key(std::uint64_t seed, KeyFamily family,
                                             const Block& block) {
  const std::uint64_t stream = (static_cast<std::uint64_t>(family) << 32) + block.tensor;
  const philox::Block words = philox::block_at(seed, stream, block.first);
  return std::uint64_t{words.word[1]} << 32 | words.word[0];
}

}  // namespace fl
