// The body of the fused quantizer's kernel (cuda_quantize.hpp).
#pragma once

#include "kernels/cuda/block.hpp"
#include "kernels/element.hpp"

namespace fl::cuda {

/// One launch reads, writes and counts all.
struct FusedRun {
  const float* x;
  float* residual;
  std::size_t n;
  QuantizeArgs args;
  element::QuantizeFactors factors;
  float step;
  std::int16_t* levels;
  std::uint32_t* counts;  // Or nullptr.
};

inline constexpr std::int32_t counted_levels_max = 127;
inline constexpr unsigned counts_max = 2 * counted_levels_max + 1;

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
  const std::uint64_t stride = std::uint64_t{block.blocks} * Block::threads;
  for (std::uint64_t g = std::uint64_t{block.index} * Block::threads + thread; g < groups;
       g += stride) {
    for_each_of_group(seed, stream, begin + g, first, n, use);
  }
}

/// `counts` is shared memory for counts_max numbers.
template <class Block>
FL_DEVICE inline void quantize_with_feedback(const Block& block, const FusedRun& run,
                                             std::uint32_t* counts) {
  const unsigned counted = run.counts == nullptr ? 0 : 2 * run.args.levels + 1;
  block.each([&](unsigned thread) {
    for (unsigned c = thread; c < counted; c += Block::threads) counts[c] = 0;
  });
  block.each([&](unsigned thread) {
    for_each_half(block, thread, run.args.seed, run.args.stream, run.args.first, run.n,
                  [&](std::size_t i, std::uint32_t half) {
                    const float whole = run.x[i] + run.residual[i];
                    const std::int32_t level = element::quantize<element::Scalar>(
                        whole, static_cast<std::int32_t>(half), run.factors);
                    run.levels[i] = static_cast<std::int16_t>(level);
                    run.residual[i] = whole - static_cast<float>(level) * run.step;
                    if (counted > 0) {
                      Block::add(counts + (level + run.args.levels), 1);
                    }
                  });
  });
  block.each([&](unsigned thread) {
    for (unsigned c = thread; c < counted; c += Block::threads) {
      if (counts[c] > 0) Block::add(run.counts + c, counts[c]);
    }
  });
}

}  // namespace fl::cuda
