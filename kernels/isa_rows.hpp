// The rows of the table, for kernels.cpp. Other rows send the ends of a run that fill no vector
// through the scalar row.
#pragma once

#include "kernels/kernels.hpp"

namespace fl {

extern const Kernels scalar_row;
#ifdef FL_HAS_AVX2
extern const Kernels avx2_row;  // Runs only where the CPU has AVX2 and F16C.
#endif

#ifdef FL_HAS_AVX2
void hadamard_avx2(float* x, int log2_n);  // In hadamard_avx2.cpp.

// In avx512.cpp.
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

// The rows' entries for rANS: the scalar ones in rans.cpp, the others in rans_avx2.cpp and
// rans_avx512.cpp.
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
