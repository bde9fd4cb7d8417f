// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_quantize.hpp"

#include "kernels/cuda/bodies/quantize_body.hpp"
#include "kernels/cuda/launch/device_block.cuh"

namespace fl::cuda {

namespace {

__global__ void feedback_kernel(FusedRun run) {
  __shared__ std::uint32_t counts[counts_max];
  quantize_with_feedback(WideBlock{}, run, counts);
}

}  // namespace

int quantize_with_feedback(const float* x, float* residual, std::size_t n, float step,
                           std::int32_t top, std::int16_t* levels, std::uint32_t* counts,
                           CUstream_st* stream) {
  const FusedRun run = {x, residual, n, step, top, levels, counts};
  return start(feedback_kernel, blocks_for(n), threads_per_block, 0, stream, run);
}

}  // namespace fl::cuda
