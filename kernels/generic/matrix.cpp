// SPDX-License-Identifier: Apache-2.0
#include "kernels/generic/matrix.hpp"

#include <algorithm>
#include <vector>

namespace fl {

void multiply(const float* matrix, const MatrixSizes& sizes, const float* right, float* left,
              const Kernels& row) {
  std::vector<double> sums(sizes.rank);
  for (std::size_t r = 0; r < sizes.rows; ++r) {
    std::ranges::fill(sums, 0.0);
    const float* const values = matrix + r * sizes.cols;
    for (std::size_t col = 0; col < sizes.cols; col += matrix_run) {
      const std::size_t count = std::min(matrix_run, sizes.cols - col);
      for (std::size_t k = 0; k < sizes.rank; ++k) {
        sums[k] += static_cast<double>(row.dot(values + col, right + k * sizes.cols + col, count));
      }
    }
    for (std::size_t k = 0; k < sizes.rank; ++k) {
      left[k * sizes.rows + r] = static_cast<float>(sums[k]);
    }
  }
}

void multiply_transposed(const float* matrix, const MatrixSizes& sizes, const float* left,
                         float* right, const Kernels& row) {
  std::fill_n(right, sizes.rank * sizes.cols, 0.0f);
  for (std::size_t col = 0; col < sizes.cols; col += matrix_run) {
    const std::size_t count = std::min(matrix_run, sizes.cols - col);
    for (std::size_t r = 0; r < sizes.rows; ++r) {
      for (std::size_t k = 0; k < sizes.rank; ++k) {
        row.add_scaled(right + k * sizes.cols + col, matrix + r * sizes.cols + col, count,
                       left[k * sizes.rows + r]);
      }
    }
  }
}

}  // namespace fl
