// The body of the kernel that reads count sketches (cuda_sketch.hpp).
#pragma once

#include "kernels/codec_device.hpp"
#include "kernels/cuda/bodies/block.hpp"
#include "kernels/generic/sketch.hpp"

namespace fl::cuda {

/// How many blocks of threads read one sketch.
inline constexpr unsigned blocks_a_sketch = 16;

/// A thread reads four elements at a time: in each row, their words are one Philox block.
template <class Block>
FL_DEVICE inline void read_sketches(const Block& block, const SketchBlock* sketches,
                                    const float* cells, float* estimates) {
  const SketchBlock& sketch = sketches[block.index / blocks_a_sketch];
  const std::uint64_t counters =
      (sketch.elements + philox::line_elements - 1) / philox::line_elements * 8;
  block.each([&](unsigned thread) {
    const std::uint64_t begin = block.index % blocks_a_sketch * Block::threads + thread;
    for (std::uint64_t counter = begin; counter < counters;
         counter += std::uint64_t{blocks_a_sketch} * Block::threads) {
      float read[4][sketch::rows_max];
      for (std::size_t row = 0; row < sketch.rows; ++row) {
        const philox::Block words = philox::block_at(sketch.key, row, counter);
        const float* const of_row = cells + sketch.cells_begin + row * sketch.columns;
        for (unsigned j = 0; j < 4; ++j) {
          const std::uint32_t word = words.word[j];
          read[j][row] = sketch::signed_by(word, of_row[sketch::column_of(word, sketch.columns)]);
        }
      }
      for (unsigned j = 0; j < 4; ++j) {
        const std::uint64_t i = counter / 8 * philox::line_elements + 8 * j + counter % 8;
        if (i >= sketch.elements) continue;
        estimates[sketch.begin + i] = sketch::estimate(read[j], sketch.rows);
      }
    }
  });
}

}  // namespace fl::cuda
