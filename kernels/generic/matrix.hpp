// Products of a matrix with a few vectors, as a factorization of low rank needs them: the same bits
// in every row and on CUDA (cuda/cuda_matrix.hpp), which a BLAS's would not be. They read the
// matrix once for all vectors, so memory sets their pace, and not the arithmetic.
//
// Pure; any thread.
#pragma once

#include "kernels/kernels.hpp"

#include <cstddef>

namespace fl {

/// Columns at a time: these stay in the L1 cache. Sums over longer rows are sums of such runs'.
inline constexpr std::size_t matrix_run = 1024;

/// matrix: fp32 [rows, cols]; right: [rank, cols]; left: [rank, rows].
struct MatrixSizes {
  std::size_t rows;
  std::size_t cols;
  std::size_t rank;
};

/// left[k][row] = the sum over runs of columns of the table's dot(), added in double and in order.
void multiply(const float* matrix, const MatrixSizes& sizes, const float* right, float* left,
              const Kernels& row = kernels());
/// right[k][col] = the sum of matrix[row][col] * left[k][row] over rows, in order.
void multiply_transposed(const float* matrix, const MatrixSizes& sizes, const float* left,
                         float* right, const Kernels& row = kernels());

}  // namespace fl
