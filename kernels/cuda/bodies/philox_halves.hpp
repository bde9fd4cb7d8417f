// SPDX-License-Identifier: Apache-2.0
// How the threads of a launch share the random halves of a Philox stream (half_word_at() of
// kernels/generic/philox.hpp).
#pragma once

#include "kernels/cuda/bodies/block.hpp"

#include <cstddef>

namespace fl::cuda {

/// A Philox block has the random halves of a group of eight elements. Group g has the elements of
/// line g / 8 that are g % 8 modulo 8. One thread does a group, so that no two threads compute the
/// same block; eight neighbouring threads together read whole sectors of memory. Calls use(i, half)
/// for the elements of the group in [first, first + n); i counts from `first`.
template <class Use>
FL_DEVICE inline void for_each_of_group(std::uint64_t seed, std::uint64_t stream,
                                        std::uint64_t group, std::uint64_t first, std::size_t n,
                                        const Use& use) {
  const philox::Block random = philox::block_at(seed, stream, group);
  const std::uint64_t begin = group / 8 * philox::half_line_elements + group % 8;
  for (unsigned m = 0; m < 8; ++m) {
    // For elements before `first` the difference wraps and is above n.
    const std::uint64_t i = begin + 8 * m - first;
    if (i >= n) continue;
    const std::uint32_t word = random.word[m / 2];
    use(static_cast<std::size_t>(i), m % 2 == 0 ? word & 0xffff : word >> 16);
  }
}

/// Calls use(i, half) for this thread's share of the n elements from `first` on.
template <class Block, class Use>
FL_DEVICE inline void for_each_half(const Block& block, unsigned thread, std::uint64_t seed,
                                    std::uint64_t stream, std::uint64_t first, std::size_t n,
                                    const Use& use) {
  const std::uint64_t begin = first / philox::half_line_elements * 8;
  const std::uint64_t groups =
      ((first + n - 1) / philox::half_line_elements + 1) * 8 - begin;  // Requires n > 0.
  for_each_index(block, thread, groups,
                 [&](std::size_t g) { for_each_of_group(seed, stream, begin + g, first, n, use); });
}

}  // namespace fl::cuda
