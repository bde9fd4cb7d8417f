// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_rotate.hpp"

#include "kernels/cuda/bodies/rotate_body.hpp"
#include "kernels/cuda/launch/device_block.cuh"

namespace fl::cuda {

namespace {

__global__ void flip_kernel(float* x, std::size_t n, std::size_t runs, const SignFlip* flips) {
  __shared__ std::uint32_t words[tile_words];
  flip_tiles(WideBlock{}, x, n, runs, flips, words);
}

__global__ void tiles_kernel(float* x, int log2_n, std::size_t runs, const SignFlip* flips) {
  __shared__ float values[tile_values];
  __shared__ std::uint32_t words[tile_words];
  transform_tiles(WideBlock{}, x, log2_n, runs, flips, values, words);
}

template <int count>
__global__ void far_kernel(float* x, std::size_t n, int log2_stride) {
  transform_far<count>(WideBlock{}, x, n, log2_stride);
}

}  // namespace

int flip_signs(float* x, std::size_t n, std::size_t runs, const SignFlip* flips,
               CUstream_st* stream) {
  const std::size_t tiles = (n + tile_values - 1) / tile_values * runs;
  return start(flip_kernel, static_cast<unsigned>(std::min(blocks_max, tiles)), threads_per_block,
               0, stream, x, n, runs, flips);
}

int hadamard(float* x, int log2_n, std::size_t runs, const SignFlip* flips, CUstream_st* stream) {
  const std::size_t n = runs << log2_n;
  const std::size_t tiles = log2_n < tile_log2 ? runs : n >> tile_log2;
  int error = start(tiles_kernel, static_cast<unsigned>(std::min(blocks_max, tiles)),
                    threads_per_block, 0, stream, x, log2_n, runs, flips);
  for (int s = tile_log2; s < log2_n && error == cudaSuccess;) {
    const int count = std::min(3, log2_n - s);
    const auto kernel = count == 1 ? far_kernel<1> : count == 2 ? far_kernel<2> : far_kernel<3>;
    error = start(kernel, blocks_for(n >> count), threads_per_block, 0, stream, x, n, s);
    s += count;
  }
  return error;
}

}  // namespace fl::cuda
