// The CUDA twins of some kernels: the same function of the same input, bit for bit, as every row of
// kernels.hpp, because both compile the arithmetic of element.hpp.
//
// Pointers are device memory of the current device. Each call starts one kernel on `stream`,
// ordered with what is there, and does not wait; errors of the start (not of the kernel) are
// returned. Any host thread. No header of CUDA is needed here: a cudaStream_t is a CUstream_st*, a
// cudaError_t an int.
#pragma once

#include "kernels/kernels.hpp"

struct CUstream_st;

namespace fl::cuda {

/// Devices that this process can use; 0 where there is no driver.
[[nodiscard]] int device_count();

/// 0, or a cudaError_t.
[[nodiscard]] int to_half(const float* x, std::size_t n, std::uint16_t* out, CUstream_st* stream);
[[nodiscard]] int from_half(const std::uint16_t* x, std::size_t n, float* out, CUstream_st* stream);
[[nodiscard]] int gaussian(std::uint64_t seed, std::uint64_t stream_id, std::uint64_t first,
                           float* out, std::size_t n, CUstream_st* stream);
[[nodiscard]] int quantize(const float* x, std::size_t n, const QuantizeArgs& args,
                           std::int16_t* levels, CUstream_st* stream);
[[nodiscard]] int dequantize(const std::int16_t* levels, std::size_t n, float step, float* out,
                             CUstream_st* stream);

}  // namespace fl::cuda
