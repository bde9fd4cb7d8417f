// SPDX-License-Identifier: Apache-2.0
// The bodies of the kernels for products of a matrix with a few vectors (cuda_matrix.hpp).
#pragma once

#include "kernels/cuda/bodies/block.hpp"
#include "kernels/generic/element_math.hpp"
#include "kernels/generic/matrix.hpp"

namespace fl::cuda {

static_assert(element::dot_lanes == 32);  // A warp's threads are the lanes of dot().

/// The shared memory of multiply_rows().
struct DotMemory {
  float lanes[element::dot_lanes];
  double sum;
};

/// Each warp computes one value of `left` at a time.
template <class Block>
FL_DEVICE inline void multiply_rows(const Block& warp, const float* matrix,
                                    const MatrixSizes& sizes, const float* right, float* left,
                                    DotMemory& shared) {
  for (std::size_t at = warp.index; at < sizes.rows * sizes.rank; at += warp.blocks) {
    const std::size_t row = at / sizes.rank;  // Neighbouring warps read the same row.
    const std::size_t k = at % sizes.rank;
    warp.each([&](unsigned lane) {
      if (lane == 0) shared.sum = 0;
    });
    for (std::size_t col = 0; col < sizes.cols; col += matrix_run) {
      const std::size_t count = sizes.cols - col < matrix_run ? sizes.cols - col : matrix_run;
      const float* const x = matrix + row * sizes.cols + col;
      const float* const y = right + k * sizes.cols + col;
      warp.each([&](unsigned lane) {
        float sum = 0;
        for (std::size_t i = lane; i < count; i += element::dot_lanes) sum += x[i] * y[i];
        shared.lanes[lane] = sum;
      });
      for (unsigned width = element::dot_lanes / 2; width > 0; width /= 2) {
        warp.each([&](unsigned lane) {
          if (lane < width) shared.lanes[lane] += shared.lanes[lane + width];
        });
      }
      warp.each([&](unsigned lane) {
        if (lane == 0) shared.sum += static_cast<double>(shared.lanes[0]);
      });
    }
    warp.each([&](unsigned lane) {
      if (lane == 0) left[k * sizes.rows + row] = static_cast<float>(shared.sum);
    });
  }
}

/// Each thread computes one value of `right` at a time.
template <class Block>
FL_DEVICE inline void multiply_columns(const Block& block, const float* matrix,
                                       const MatrixSizes& sizes, const float* left, float* right) {
  block.each([&](unsigned thread) {
    for_each_index(block, thread, sizes.rank * sizes.cols, [&](std::size_t at) {
      const float* const column = matrix + at % sizes.cols;
      const float* const factors = left + at / sizes.cols * sizes.rows;
      float sum = 0;
      for (std::size_t row = 0; row < sizes.rows; ++row)
        sum += column[row * sizes.cols] * factors[row];
      right[at] = sum;
    });
  });
}

}  // namespace fl::cuda
