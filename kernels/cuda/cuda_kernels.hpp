// SPDX-License-Identifier: Apache-2.0
// The CUDA twins of some kernels. They give the same bits as every row of kernels.hpp, because both
// compile the arithmetic of generic/element_math.hpp.
//
// Pointers are memory of the current device. Each call starts one kernel on `stream`, in order with
// the work that is there, and does not wait. It returns 0, or the cudaError_t of the start (not of
// the kernel). Any host thread. This header needs none of CUDA: a cudaStream_t is a CUstream_st*,
// and a cudaError_t is an int.
#pragma once

#include "kernels/kernels.hpp"

struct CUstream_st;

namespace fl::cuda {

/// How many devices this process can use; 0 without a driver.
[[nodiscard]] int device_count();

/// These do what the functions of the same names in Kernels do.
[[nodiscard]] int to_half(const float* x, std::size_t n, std::uint16_t* out, CUstream_st* stream);
[[nodiscard]] int from_half(const std::uint16_t* x, std::size_t n, float* out, CUstream_st* stream);
[[nodiscard]] int to_bf16(const float* x, std::size_t n, std::uint16_t* out, CUstream_st* stream);
[[nodiscard]] int from_bf16(const std::uint16_t* x, std::size_t n, float* out, CUstream_st* stream);
[[nodiscard]] int gaussian(std::uint64_t seed, std::uint64_t stream_id, std::uint64_t first,
                           float* out, std::size_t n, CUstream_st* stream);
[[nodiscard]] int quantize(const float* x, std::size_t n, const QuantizeArgs& args,
                           std::int16_t* levels, CUstream_st* stream);
[[nodiscard]] int dequantize(const std::int16_t* levels, std::size_t n, float step, float* out,
                             CUstream_st* stream);

/// dither() and round() raise `largest` to the largest |level|, which Kernels' functions return.
/// The caller must set it before, for example to 0.
[[nodiscard]] int dither(const float* x, std::size_t n, const DitherArgs& args,
                         std::int16_t* levels, std::uint8_t* classes, std::uint32_t* largest,
                         CUstream_st* stream);
[[nodiscard]] int undither(const std::int16_t* levels, std::size_t n, const DitherArgs& args,
                           float* out, CUstream_st* stream);
[[nodiscard]] int dither_classes(std::size_t n, const DitherArgs& args, std::uint8_t* classes,
                                 CUstream_st* stream);
[[nodiscard]] int round(const float* x, std::size_t n, float step, std::int16_t* levels,
                        std::uint32_t* largest, CUstream_st* stream);

/// scan() and pack_signs() of each run of `run` values; the last run may be shorter. Requires:
/// 1 <= run < 2^32, and for pack_signs a multiple of 8. scans[r].first_bad counts from the start of
/// run r. The sums are in the order of the rows, so at most 16 additions of a run happen at once.
/// That is fast for many runs, such as a codec's blocks of 65,536, and slow for one run of
/// millions.
[[nodiscard]] int scan(const float* x, std::size_t n, std::size_t run, Scan* scans,
                       CUstream_st* stream);
[[nodiscard]] int pack_signs(const float* x, std::size_t n, std::size_t run, std::uint8_t* out,
                             double* sums, CUstream_st* stream);
[[nodiscard]] int unpack_signs(const std::uint8_t* packed, std::size_t n, float scale, float* out,
                               CUstream_st* stream);

}  // namespace fl::cuda
