// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_matrix.hpp"

#include "kernels/cuda/bodies/matrix_body.hpp"
#include "kernels/cuda/launch/device_block.cuh"

namespace fl::cuda {

namespace {

__global__ void rows_kernel(const float* matrix, MatrixSizes sizes, const float* right,
                            float* left) {
  __shared__ DotMemory shared;
  multiply_rows(WarpBlock{}, matrix, sizes, right, left, shared);
}

__global__ void columns_kernel(const float* matrix, MatrixSizes sizes, const float* left,
                               float* right) {
  multiply_columns(WideBlock{}, matrix, sizes, left, right);
}

}  // namespace

int multiply(const float* matrix, const MatrixSizes& sizes, const float* right, float* left,
             CUstream_st* stream) {
  constexpr std::size_t warps_max = 1 << 16;
  const auto warps = static_cast<unsigned>(std::min(warps_max, sizes.rows * sizes.rank));
  return start(rows_kernel, warps, WarpBlock::threads, 0, stream, matrix, sizes, right, left);
}

int multiply_transposed(const float* matrix, const MatrixSizes& sizes, const float* left,
                        float* right, CUstream_st* stream) {
  return start(columns_kernel, blocks_for(sizes.rank * sizes.cols), threads_per_block, 0, stream,
               matrix, sizes, left, right);
}

}  // namespace fl::cuda
