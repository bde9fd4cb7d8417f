// SPDX-License-Identifier: Apache-2.0
// The body of the fused quantizer's kernel (cuda_quantize.hpp).
#pragma once

#include "kernels/cuda/bodies/block.hpp"
#include "kernels/generic/element_math.hpp"

namespace fl::cuda {

/// The arguments of quantize_with_feedback().
struct FusedRun {
  const float* x;
  float* residual;
  std::size_t n;
  float step;
  std::int32_t top;
  std::int16_t* levels;
  std::uint32_t* counts;  // Or nullptr.
};

inline constexpr std::int32_t counted_levels_max = 127;
inline constexpr unsigned counts_max = 2 * counted_levels_max + 1;

/// `counts` is shared memory for counts_max numbers.
template <class Block>
FL_DEVICE inline void quantize_with_feedback(const Block& block, const FusedRun& run,
                                             std::uint32_t* counts) {
  const unsigned counted = run.counts == nullptr ? 0 : static_cast<unsigned>(2 * run.top + 1);
  const float per_step = 1.0f / run.step;
  block.each([&](unsigned thread) {
    for (unsigned c = thread; c < counted; c += Block::threads) counts[c] = 0;
  });
  block.each([&](unsigned thread) {
    for_each_index(block, thread, run.n, [&](std::size_t i) {
      const float whole = run.x[i] + run.residual[i];
      const std::int32_t nearest = element::round_level<element::Scalar>(whole * per_step);
      const std::int32_t level =
          nearest > run.top ? run.top : (nearest < -run.top ? -run.top : nearest);
      run.levels[i] = static_cast<std::int16_t>(level);
      run.residual[i] = whole - static_cast<float>(level) * run.step;
      if (counted > 0) Block::add(counts + (level + run.top), 1);
    });
  });
  block.each([&](unsigned thread) {
    for (unsigned c = thread; c < counted; c += Block::threads) {
      if (counts[c] > 0) Block::add(run.counts + c, counts[c]);
    }
  });
}

}  // namespace fl::cuda
