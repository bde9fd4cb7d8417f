// SPDX-License-Identifier: Apache-2.0
// The rows, for kernels.cpp, and the functions that rows share. The SIMD rows call the scalar row
// for the end of a run, where less than a vector is left.
#pragma once

#include "kernels/kernels.hpp"

namespace fl {

extern const Kernels scalar_row;
#ifdef FL_HAS_AVX2
extern const Kernels avx2_row;  // Needs a CPU with AVX2 and F16C.
#endif

#ifdef FL_HAS_AVX2
void hadamard_avx2(float* x, int log2_n);  // Defined in hadamard_avx2.cpp.

// Defined in avx512.cpp; they need a CPU with AVX-512 F and VL.
void gaussian_avx512(std::uint64_t seed, std::uint64_t stream, std::uint64_t first, float* out,
                     std::size_t n);
void quantize_avx512(const float* x, std::size_t n, const QuantizeArgs& args, std::int16_t* levels);
std::int32_t dither_avx512(const float* x, std::size_t n, const DitherArgs& args,
                           std::int16_t* levels, std::uint8_t* classes);
void undither_avx512(const std::int16_t* levels, std::size_t n, const DitherArgs& args, float* out);
std::size_t find_at_least_avx512(const void* words, std::size_t n, std::uint32_t least,
                                 std::uint32_t* indices);
void dither_classes_avx512(std::size_t n, const DitherArgs& args, std::uint8_t* classes);
#endif

// The rows' functions for rANS. The scalar ones are in generic/rans.cpp, the others in
// x86/rans_avx2.cpp and x86/rans_avx512.cpp. rans_decode_avx512 also needs AVX-512 BW, VBMI and
// VBMI2.
void count_symbols(const std::uint8_t* symbols, std::size_t n, std::uint32_t* counts);
std::uint8_t* rans_encode_scalar(const rans::Code* codes, const std::uint8_t* symbols,
                                 std::size_t n, std::uint32_t* states, std::uint8_t* out);
const std::uint8_t* rans_decode_scalar(const std::uint32_t* places, const std::uint8_t* classes,
                                       std::uint32_t* states, const std::uint8_t* in,
                                       const std::uint8_t* end, std::uint8_t* symbols,
                                       std::size_t n);
#ifdef FL_HAS_AVX2
void count_symbols_avx2(const std::uint8_t* symbols, std::size_t n, std::uint32_t* counts);
std::uint8_t* rans_encode_avx2(const rans::Code* codes, const std::uint8_t* symbols, std::size_t n,
                               std::uint32_t* states, std::uint8_t* out);
const std::uint8_t* rans_decode_avx2(const std::uint32_t* places, const std::uint8_t* classes,
                                     std::uint32_t* states, const std::uint8_t* in,
                                     const std::uint8_t* end, std::uint8_t* symbols, std::size_t n);
const std::uint8_t* rans_decode_avx512(const std::uint32_t* places, const std::uint8_t* classes,
                                       std::uint32_t* states, const std::uint8_t* in,
                                       const std::uint8_t* end, std::uint8_t* symbols,
                                       std::size_t n);
#endif

}  // namespace fl
