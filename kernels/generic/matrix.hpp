// SPDX-License-Identifier: Apache-2.0
// Products of a matrix with a few vectors, for factorizations of low rank. They have the same bits
// in every row and on CUDA (cuda/cuda_matrix.hpp); a BLAS does not promise that. They read the
// matrix once for all vectors, so memory limits their speed, not arithmetic.
//
// Pure; any thread. multiply() allocates `rank` doubles. Input and output must not overlap.
#pragma once

#include "kernels/kernels.hpp"

#include <cstddef>

namespace fl {

/// Columns that are multiplied at a time, so that they stay in the L1 cache. The sum over a longer
/// row is the sum over its runs of this many columns.
inline constexpr std::size_t matrix_run = 1024;

/// The shapes, all fp32 and row by row: matrix [rows, cols], right [rank, cols], left [rank, rows].
struct MatrixSizes {
  std::size_t rows;
  std::size_t cols;
  std::size_t rank;
};

/// left[k][row] = the sum of matrix[row][col] * right[k][col] over col: Kernels::dot() of each run
/// of columns, and these added in order in double.
void multiply(const float* matrix, const MatrixSizes& sizes, const float* right, float* left,
              const Kernels& row = kernels());
/// right[k][col] = the sum of matrix[row][col] * left[k][row] over row, added in order in fp32.
void multiply_transposed(const float* matrix, const MatrixSizes& sizes, const float* left,
                         float* right, const Kernels& row = kernels());

}  // namespace fl
