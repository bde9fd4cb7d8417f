// How a launch shares out the random halves of a Philox stream (philox.hpp, half_word_at).
#pragma once

#include "kernels/cuda/bodies/block.hpp"

#include <cstddef>

namespace fl::cuda {

/// A Philox block has the random halves of eight elements, those of a line that are k modulo 8. So
/// a thread does those eight: it makes no word that another makes too, and eight neighbours
/// together read whole sectors. Group g is the k = g % 8 of line g / 8; calls use(i, half) for its
/// elements of [first, first + n), where i counts from `first`.
template <class Use>
FL_DEVICE inline void for_each_of_group(std::uint64_t seed, std::uint64_t stream,
                                        std::uint64_t group, std::uint64_t first, std::size_t n,
                                        const Use& use) {
  const philox::Block random = philox::block_at(seed, stream, group);
  const std::uint64_t begin = group / 8 * philox::half_line_elements + group % 8;
  for (unsigned m = 0; m < 8; ++m) {
    // Before `first` the difference wraps, and is past n.
    const std::uint64_t i = begin + 8 * m - first;
    if (i >= n) continue;
    const std::uint32_t word = random.word[m / 2];
    use(static_cast<std::size_t>(i), m % 2 == 0 ? word & 0xffff : word >> 16);
  }
}

/// Calls use(i, half) for each of the n elements from `first` on, in this block's share of groups.
template <class Block, class Use>
FL_DEVICE inline void for_each_half(const Block& block, unsigned thread, std::uint64_t seed,
                                    std::uint64_t stream, std::uint64_t first, std::size_t n,
                                    const Use& use) {
  const std::uint64_t begin = first / philox::half_line_elements * 8;
  const std::uint64_t groups =
      ((first + n - 1) / philox::half_line_elements + 1) * 8 - begin;  // n > 0.
  for_each_index(block, thread, groups,
                 [&](std::size_t g) { for_each_of_group(seed, stream, begin + g, first, n, use); });
}

}  // namespace fl::cuda
