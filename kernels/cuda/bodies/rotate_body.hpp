// SPDX-License-Identifier: Apache-2.0
// The bodies of the kernels for the rotation of the codec eden (cuda_rotate.hpp). As in the rows,
// each value goes through the strides 1, 2, 4 and so on in this order, so the bits are the same.
#pragma once

#include "kernels/cuda/bodies/block.hpp"
#include "kernels/cuda/cuda_rotate.hpp"
#include "kernels/generic/element_math.hpp"

namespace fl::cuda {

/// How many values a block of threads transforms in shared memory.
inline constexpr int tile_log2 = 13;
inline constexpr std::size_t tile_values = std::size_t{1} << tile_log2;
inline constexpr unsigned tile_words = tile_values / 32;  // Words of sign bits.

/// Makes the sign bits of a tile of a run. Its first element is `begin`, a multiple of tile_values.
/// `words` is shared memory for tile_words.
template <class Block>
FL_DEVICE inline void make_signs(const Block& block, const SignFlip& flip, std::size_t begin,
                                 std::uint32_t* words) {
  const std::uint64_t first_counter = philox::counter_of(begin / 32);
  block.each([&](unsigned thread) {
    for (unsigned c = thread; c < tile_words / 4; c += Block::threads) {
      const philox::Block random = philox::block_at(flip.seed, flip.stream, first_counter + c);
      for (unsigned j = 0; j < 4; ++j) words[c / 8 * 32 + 8 * j + c % 8] = random.word[j];
    }
  });
}

/// flip_sign() of x, which is element i of the tile.
FL_DEVICE inline float flipped(float x, const SignFlip& flip, const std::uint32_t* words,
                               std::size_t i) {
  const std::uint32_t sign = words[i / 32] << (31 - i % 32) & 0x80000000;
  return element::flip_sign<element::Scalar>(x, flip.factor, static_cast<std::int32_t>(sign));
}

template <class Block>
FL_DEVICE inline void flip_tiles(const Block& block, float* x, std::size_t n, std::size_t runs,
                                 const SignFlip* flips, std::uint32_t* words) {
  const std::size_t run_tiles = (n + tile_values - 1) / tile_values;
  for (std::size_t tile = block.index; tile < run_tiles * runs; tile += block.blocks) {
    const std::size_t run = tile / run_tiles;
    const std::size_t begin = tile % run_tiles * tile_values;
    const std::size_t size = n - begin < tile_values ? n - begin : tile_values;
    float* const at = x + run * n + begin;
    make_signs(block, flips[run], begin, words);
    block.each([&](unsigned thread) {
      for (std::size_t i = thread; i < size; i += Block::threads) {
        at[i] = flipped(at[i], flips[run], words, i);
      }
    });
  }
}

/// Does the strides that fit into a tile. `values` is shared memory for tile_values, `words` for
/// tile_words.
template <class Block>
FL_DEVICE inline void transform_tiles(const Block& block, float* x, int log2_n, std::size_t runs,
                                      const SignFlip* flips, float* values, std::uint32_t* words) {
  const int log2_size = log2_n < tile_log2 ? log2_n : tile_log2;
  const std::size_t size = std::size_t{1} << log2_size;
  const std::size_t run_tiles = std::size_t{1} << (log2_n - log2_size);
  for (std::size_t tile = block.index; tile < run_tiles * runs; tile += block.blocks) {
    const std::size_t run = tile / run_tiles;
    float* const at = x + tile * size;
    if (flips != nullptr) make_signs(block, flips[run], tile % run_tiles * size, words);
    block.each([&](unsigned thread) {
      for (std::size_t i = thread; i < size; i += Block::threads) {
        values[i] = flips == nullptr ? at[i] : flipped(at[i], flips[run], words, i);
      }
    });
    for (int s = 0; s < log2_size; ++s) {
      const std::size_t stride = std::size_t{1} << s;
      block.each([&](unsigned thread) {
        for (std::size_t pair = thread; pair < size / 2; pair += Block::threads) {
          const std::size_t i = (pair >> s << (s + 1)) | (pair & (stride - 1));
          const float a = values[i];
          const float b = values[i + stride];
          values[i] = a + b;
          values[i + stride] = a - b;
        }
      });
    }
    block.each([&](unsigned thread) {
      for (std::size_t i = thread; i < size; i += Block::threads) at[i] = values[i];
    });
  }
}

/// Does `count` strides of n values, from 2^log2_stride on, with one load and one store of each
/// value.
template <int count, class Block>
FL_DEVICE inline void transform_far(const Block& block, float* x, std::size_t n, int log2_stride) {
  constexpr unsigned rows = 1u << count;
  const std::size_t stride = std::size_t{1} << log2_stride;
  block.each([&](unsigned thread) {
    for_each_index(block, thread, n / rows, [&](std::size_t p) {
      float* const at = x + ((p >> log2_stride << (log2_stride + count)) | (p & (stride - 1)));
      float v[rows];
      for (unsigned i = 0; i < rows; ++i) v[i] = at[i * stride];
      for (unsigned apart = 1; apart < rows; apart *= 2) {
        for (unsigned i = 0; i < rows; ++i) {
          if ((i & apart) != 0) continue;
          const float a = v[i];
          const float b = v[i + apart];
          v[i] = a + b;
          v[i + apart] = a - b;
        }
      }
      for (unsigned i = 0; i < rows; ++i) at[i * stride] = v[i];
    });
  });
}

}  // namespace fl::cuda
