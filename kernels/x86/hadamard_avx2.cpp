// SPDX-License-Identifier: Apache-2.0
// The Walsh-Hadamard transform with AVX2. It may visit memory in another order than the scalar row,
// but each value goes through the strides 1, 2, 4 and so on in this order, so the bits are the
// same.
//
// Compiled with -mavx2. So it must not include a header with inline functions that other files
// share: the linker could choose this file's copy for all.
#include "kernels/isa_rows.hpp"

#include <immintrin.h>

namespace fl {

namespace {

constexpr std::size_t width = 8;
constexpr std::size_t cached = 4096;  // Values that stay in the L1 cache between strides.

// For each pair a and b of x: a + b in the place of a, and a + -b in the place of b. `swapped` is x
// with a and b exchanged, and `negate` has the sign bit at each b.
__m256 butterfly(__m256 x, __m256 swapped, __m256 negate) {
  return _mm256_add_ps(swapped, _mm256_xor_ps(x, negate));
}

// Does the strides 1, 2 and 4 within eight values.
__m256 within(__m256 x) {
  const __m256 negate_1 = _mm256_setr_ps(0, -0.0f, 0, -0.0f, 0, -0.0f, 0, -0.0f);
  const __m256 negate_2 = _mm256_setr_ps(0, 0, -0.0f, -0.0f, 0, 0, -0.0f, -0.0f);
  const __m256 negate_4 = _mm256_setr_ps(0, 0, 0, 0, -0.0f, -0.0f, -0.0f, -0.0f);
  x = butterfly(x, _mm256_permute_ps(x, 0b10'11'00'01), negate_1);
  x = butterfly(x, _mm256_permute_ps(x, 0b01'00'11'10), negate_2);
  return butterfly(x, _mm256_permute2f128_ps(x, x, 1), negate_4);
}

// Does `count` strides from `stride` on, a multiple of 8, with one load and one store of each
// value.
template <std::size_t count>
void strides_at_once(float* x, std::size_t n, std::size_t stride) {
  constexpr std::size_t rows = std::size_t{1} << count;
  for (std::size_t begin = 0; begin < n; begin += rows * stride) {
    for (float* at = x + begin; at < x + begin + stride; at += width) {
      __m256 v[rows];
#pragma GCC unroll 8
      for (std::size_t i = 0; i < rows; ++i) v[i] = _mm256_loadu_ps(at + i * stride);
#pragma GCC unroll 3
      for (std::size_t apart = 1; apart < rows; apart *= 2) {
#pragma GCC unroll 8
        for (std::size_t i = 0; i < rows; ++i) {
          if ((i & apart) != 0) continue;
          const __m256 a = v[i];
          const __m256 b = v[i + apart];
          v[i] = _mm256_add_ps(a, b);
          v[i + apart] = _mm256_sub_ps(a, b);
        }
      }
#pragma GCC unroll 8
      for (std::size_t i = 0; i < rows; ++i) _mm256_storeu_ps(at + i * stride, v[i]);
    }
  }
}

// Does all strides from `stride` on that are below n.
void strides_from(float* x, std::size_t n, std::size_t stride) {
  for (; 4 * stride < n; stride *= 8) strides_at_once<3>(x, n, stride);
  if (2 * stride < n) return strides_at_once<2>(x, n, stride);
  if (stride < n) strides_at_once<1>(x, n, stride);
}

}  // namespace

void hadamard_avx2(float* x, int log2_n) {
  const std::size_t n = std::size_t{1} << log2_n;
  if (n < width) return scalar_row.hadamard(x, log2_n);
  const std::size_t part = n < cached ? n : cached;
  for (float* begin = x; begin < x + n; begin += part) {
    for (std::size_t i = 0; i < part; i += width) {
      _mm256_storeu_ps(begin + i, within(_mm256_loadu_ps(begin + i)));
    }
    strides_from(begin, part, width);
  }
  strides_from(x, n, part);
}

}  // namespace fl
