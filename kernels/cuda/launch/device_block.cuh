// SPDX-License-Identifier: Apache-2.0
// CUDA's block of threads (bodies/block.hpp), and how to start kernels over it.
#pragma once

#include "kernels/cuda/bodies/block.hpp"

#include <algorithm>
#include <cstddef>

namespace fl::cuda {

template <unsigned thread_count>
struct DeviceBlock {
  static constexpr unsigned threads = thread_count;
  unsigned index = blockIdx.x;
  unsigned blocks = gridDim.x;

  template <class T>
  struct PerThread {
    T value;
    FL_DEVICE T& operator[](unsigned) { return value; }
  };

  template <class Use>
  FL_DEVICE static void each(const Use& use) {
    use(threadIdx.x);
    if constexpr (threads == 32) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  template <class IsTrue>
  FL_DEVICE static std::uint32_t ballot(const IsTrue& is_true) {
    static_assert(threads == 32);
    const bool vote = is_true(threadIdx.x);
    __syncwarp();
    return __ballot_sync(~0u, vote);
  }

  FL_DEVICE static void add(std::uint32_t* to, std::uint32_t by) { atomicAdd(to, by); }
  FL_DEVICE static void add(double* to, double by) { atomicAdd(to, by); }
  FL_DEVICE static void raise(std::uint32_t* to, std::uint32_t least) { atomicMax(to, least); }
  FL_DEVICE static void lower(std::uint32_t* to, std::uint32_t most) { atomicMin(to, most); }

  FL_DEVICE static unsigned ones(std::uint32_t x) { return static_cast<unsigned>(__popc(x)); }
};

constexpr unsigned threads_per_block = 256;
constexpr std::size_t blocks_max = 4096;  // Enough for any device; more work is done in strides.

using WideBlock = DeviceBlock<threads_per_block>;
using WarpBlock = DeviceBlock<32>;

/// How many blocks have a thread for each of n pieces of work, at most blocks_max.
inline unsigned blocks_for(std::size_t n) {
  return static_cast<unsigned>(
      std::min(blocks_max, (n + threads_per_block - 1) / threads_per_block));
}

/// Starts `kernel` and returns 0, or the cudaError_t of the start. Does nothing for 0 blocks.
template <class... Parameters, class... Arguments>
int start(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
          std::size_t shared_bytes, CUstream_st* stream, const Arguments&... arguments) {
  if (blocks == 0) return cudaSuccess;
  kernel<<<blocks, threads, shared_bytes, stream>>>(arguments...);
  return cudaGetLastError();
}

}  // namespace fl::cuda
