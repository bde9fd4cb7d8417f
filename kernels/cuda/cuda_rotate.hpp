// The codec eden's rotation (Vargaftik 2022, "EDEN": a randomized Hadamard transform) of
// many runs in a launch: the bits of the rows' flip_signs and hadamard.
//
// Device memory of the current device, on `stream`, not waited for, no memory of its own; 0, or the
// first cudaError_t of a start (cuda_kernels.hpp). In place; no alignment beyond the element's.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace fl::cuda {

/// What flip_signs of the table takes for a run.
struct SignFlip {
  float factor;
  std::uint64_t seed;
  std::uint64_t stream;
};

/// flip_signs() of each of the runs of n values, which lie one after the other. flips[r], in device
/// memory, is for run r.
[[nodiscard]] int flip_signs(float* x, std::size_t n, std::size_t runs, const SignFlip* flips,
                             CUstream_st* stream);

/// hadamard() of each of the runs of 2^log2_n values; log2_n is from 0 to 30. Unless `flips` is
/// nullptr, flip_signs() before, without another pass.
[[nodiscard]] int hadamard(float* x, int log2_n, std::size_t runs, const SignFlip* flips,
                           CUstream_st* stream);

}  // namespace fl::cuda
