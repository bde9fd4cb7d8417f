// SPDX-License-Identifier: Apache-2.0
// The rotation of the codec eden (Vargaftik 2022, "EDEN": a randomized Hadamard transform), for
// many runs in one call. The bits are those of Kernels::flip_signs() and Kernels::hadamard().
//
// Calls are as in cuda_kernels.hpp: memory of the current device, on `stream`, without waiting, and
// the result is 0 or the first cudaError_t of a start. They work in place and allocate nothing.
// Pointers need no more alignment than the element's type.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace fl::cuda {

/// The arguments of Kernels::flip_signs() for a run.
struct SignFlip {
  float factor;
  std::uint64_t seed;
  std::uint64_t stream;
};

/// flip_signs() of each run of n values. The runs lie one after the other. flips[r], in device
/// memory, is for run r.
[[nodiscard]] int flip_signs(float* x, std::size_t n, std::size_t runs, const SignFlip* flips,
                             CUstream_st* stream);

/// hadamard() of each run of 2^log2_n values; log2_n is 0 to 30. If `flips` is not nullptr, each
/// run goes through flip_signs() first, without another pass over memory.
[[nodiscard]] int hadamard(float* x, int log2_n, std::size_t runs, const SignFlip* flips,
                           CUstream_st* stream);

}  // namespace fl::cuda
