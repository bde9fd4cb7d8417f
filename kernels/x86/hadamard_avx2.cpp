// The Walsh-Hadamard transform with AVX2. Whatever the order in which memory is walked, each value
// goes through the strides 1, 2, 4 and so on, so the bits are the scalar row's.
//
// Compiled with -mavx2: includes no header with inline functions that another file could share.
#include "kernels/isa_rows.hpp"

#include <immintrin.h>

namespace fl {

namespace {

constexpr std::size_t width = 8;
constexpr std::size_t cached = 4096;  // Values that stay in the first cache from stride to stride.

// a + b in place of a, and a + -b, which is a - b, in place of b; `swapped` has b in place of a.
__m256 butterfly(__m256 x, __m256 swapped, __m256 negate) {
  return _mm256_add_ps(swapped, _mm256_xor_ps(x, negate));
}

// The strides 1, 2 and 4 of eight values.
__m256 within(__m256 x) {
  const __m256 negate_1 = _mm256_setr_ps(0, -0.0f, 0, -0.0f, 0, -0.0f, 0, -0.0f);
  const __m256 negate_2 = _mm256_setr_ps(0, 0, -0.0f, -0.0f, 0, 0, -0.0f, -0.0f);
  const __m256 negate_4 = _mm256_setr_ps(0, 0, 0, 0, -0.0f, -0.0f, -0.0f, -0.0f);
  x = butterfly(x, _mm256_permute_ps(x, 0b10'11'00'01), negate_1);
  x = butterfly(x, _mm256_permute_ps(x, 0b01'00'11'10), negate_2);
  return butterfly(x, _mm256_permute2f128_ps(x, x, 1), negate_4);
}

// So many strides at once, from `stride` on, a multiple of 8: each value is loaded and stored once.
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

// All strides from `stride` that are below n.
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
