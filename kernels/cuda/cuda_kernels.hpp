// The CUDA twins of some kernels: the same function of the same input, bit for bit, as every row of
// kernels.hpp, because both compile the arithmetic of element_math.hpp.
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
[[nodiscard]] int to_bf16(const float* x, std::size_t n, std::uint16_t* out, CUstream_st* stream);
[[nodiscard]] int from_bf16(const std::uint16_t* x, std::size_t n, float* out, CUstream_st* stream);
[[nodiscard]] int gaussian(std::uint64_t seed, std::uint64_t stream_id, std::uint64_t first,
                           float* out, std::size_t n, CUstream_st* stream);
[[nodiscard]] int quantize(const float* x, std::size_t n, const QuantizeArgs& args,
                           std::int16_t* levels, CUstream_st* stream);
[[nodiscard]] int dequantize(const std::int16_t* levels, std::size_t n, float step, float* out,
                             CUstream_st* stream);

/// What the table's dither and round return raises `largest`, which the caller has set.
[[nodiscard]] int dither(const float* x, std::size_t n, const DitherArgs& args,
                         std::int16_t* levels, std::uint8_t* classes, std::uint32_t* largest,
                         CUstream_st* stream);
[[nodiscard]] int undither(const std::int16_t* levels, std::size_t n, const DitherArgs& args,
                           float* out, CUstream_st* stream);
[[nodiscard]] int dither_classes(std::size_t n, const DitherArgs& args, std::uint8_t* classes,
                                 CUstream_st* stream);
[[nodiscard]] int round(const float* x, std::size_t n, float step, std::int16_t* levels,
                        std::uint32_t* largest, CUstream_st* stream);

/// What the table's scan and pack_signs return, of each run of `run` values, the last one shorter:
/// 1 <= run < 2^32, and a multiple of 8 for pack_signs. The sums are in the rows' order, so no more
/// than 16 additions of a run go on at once: fast where runs are many, as a codec's blocks of
/// 65,536 are, and slow for one of millions. scans[r].first_bad counts from the begin of its run.
[[nodiscard]] int scan(const float* x, std::size_t n, std::size_t run, Scan* scans,
                       CUstream_st* stream);
[[nodiscard]] int pack_signs(const float* x, std::size_t n, std::size_t run, std::uint8_t* out,
                             double* sums, CUstream_st* stream);
[[nodiscard]] int unpack_signs(const std::uint8_t* packed, std::size_t n, float scale, float* out,
                               CUstream_st* stream);

}  // namespace fl::cuda
