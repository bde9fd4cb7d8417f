// SPDX-License-Identifier: Apache-2.0
// The bodies of the kernels that round to levels with and without dither (cuda_kernels.hpp).
#pragma once

#include "kernels/cuda/bodies/philox_halves.hpp"
#include "kernels/generic/element_math.hpp"

namespace fl::cuda {

/// Calls use(i, word) for this thread's elements. The upper half of `word` is the random half.
template <class Block, class Use>
FL_DEVICE inline void for_each_dither(const Block& block, unsigned thread, std::size_t n,
                                      const DitherArgs& args, const Use& use) {
  for_each_half(block, thread, args.key, 0, args.first, n, [&](std::size_t i, std::uint32_t half) {
    use(i, static_cast<std::int32_t>(half << 16));
  });
}

/// Calls levels_of(thread, see), which must call see(level) for each level, and raises `largest` to
/// the largest |level|. `shared` is shared memory for one number.
template <class Block, class LevelsOf>
FL_DEVICE inline void with_largest(const Block& block, std::uint32_t* largest,
                                   std::uint32_t* shared, const LevelsOf& levels_of) {
  block.each([&](unsigned thread) {
    if (thread == 0) *shared = 0;
  });
  block.each([&](unsigned thread) {
    std::int32_t most = 0;
    levels_of(thread, [&](std::int32_t level) {
      const std::int32_t size = level < 0 ? -level : level;
      most = size > most ? size : most;
    });
    Block::raise(shared, static_cast<std::uint32_t>(most));
  });
  block.each([&](unsigned thread) {
    if (thread == 0) Block::raise(largest, *shared);
  });
}

template <class Block>
FL_DEVICE inline void dither(const Block& block, const float* x, std::size_t n,
                             const DitherArgs& args, std::int16_t* levels, std::uint8_t* classes,
                             std::uint32_t* largest, std::uint32_t* shared) {
  const float per_step = 1.0f / args.step;
  with_largest(block, largest, shared, [&](unsigned thread, const auto& see) {
    for_each_dither(block, thread, n, args, [&](std::size_t i, std::int32_t word) {
      const std::int32_t level = element::dither<element::Scalar>(x[i], word, per_step);
      see(level);
      levels[i] = static_cast<std::int16_t>(level);
      if (classes == nullptr) return;
      classes[i] =
          static_cast<std::uint8_t>(element::dither_class<element::Scalar>(word, args.class_bits));
    });
  });
}

template <class Block>
FL_DEVICE inline void undither(const Block& block, const std::int16_t* levels, std::size_t n,
                               const DitherArgs& args, float* out) {
  block.each([&](unsigned thread) {
    for_each_dither(block, thread, n, args, [&](std::size_t i, std::int32_t word) {
      out[i] = element::undither<element::Scalar>(levels[i], word, args.step);
    });
  });
}

template <class Block>
FL_DEVICE inline void dither_classes(const Block& block, std::size_t n, const DitherArgs& args,
                                     std::uint8_t* classes) {
  block.each([&](unsigned thread) {
    for_each_dither(block, thread, n, args, [&](std::size_t i, std::int32_t word) {
      classes[i] =
          static_cast<std::uint8_t>(element::dither_class<element::Scalar>(word, args.class_bits));
    });
  });
}

template <class Block>
FL_DEVICE inline void round_levels(const Block& block, const float* x, std::size_t n, float step,
                                   std::int16_t* levels, std::uint32_t* largest,
                                   std::uint32_t* shared) {
  const float per_step = 1.0f / step;
  with_largest(block, largest, shared, [&](unsigned thread, const auto& see) {
    for_each_index(block, thread, n, [&](std::size_t i) {
      const std::int32_t level = element::round_level<element::Scalar>(x[i] * per_step);
      see(level);
      levels[i] = static_cast<std::int16_t>(level);
    });
  });
}

}  // namespace fl::cuda
