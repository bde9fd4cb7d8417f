// The Walsh-Hadamard transform with AVX2. Whatever the order in which memory is walked, each value
// goes through the strides 1, 2, 4 and so on, so the bits are the scalar row's.
//
// Compiled with -mavx2: includes no header with inline functions that another file could share.
#include "kernels/rows.hpp"

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

void one_stride(float* x, std::size_t n, std::size_t stride) {
  for (std::size_t begin = 0; begin < n; begin += 2 * stride) {
    for (float* at = x + begin; at < x + begin + stride; at += width) {
      const __m256 a = _mm256_loadu_ps(at);
      const __m256 b = _mm256_loadu_ps(at + stride);
      _mm256_storeu_ps(at, _mm256_add_ps(a, b));
      _mm256_storeu_ps(at + stride, _mm256_sub_ps(a, b));
    }
  }
}

// `stride` and the next at once, which saves half of the loads and stores.
void two_strides(float* x, std::size_t n, std::size_t stride) {
  for (std::size_t begin = 0; begin < n; begin += 4 * stride) {
    for (float* at = x + begin; at < x + begin + stride; at += width) {
      const __m256 a = _mm256_loadu_ps(at);
      const __m256 b = _mm256_loadu_ps(at + stride);
      const __m256 c = _mm256_loadu_ps(at + 2 * stride);
      const __m256 d = _mm256_loadu_ps(at + 3 * stride);
      const __m256 ab = _mm256_add_ps(a, b);
      const __m256 ab_less = _mm256_sub_ps(a, b);
      const __m256 cd = _mm256_add_ps(c, d);
      const __m256 cd_less = _mm256_sub_ps(c, d);
      _mm256_storeu_ps(at, _mm256_add_ps(ab, cd));
      _mm256_storeu_ps(at + stride, _mm256_add_ps(ab_less, cd_less));
      _mm256_storeu_ps(at + 2 * stride, _mm256_sub_ps(ab, cd));
      _mm256_storeu_ps(at + 3 * stride, _mm256_sub_ps(ab_less, cd_less));
    }
  }
}

// All strides from `stride`, at least 8, that are below n.
void strides_from(float* x, std::size_t n, std::size_t stride) {
  for (; 2 * stride < n; stride *= 4) two_strides(x, n, stride);
  if (stride < n) one_stride(x, n, stride);
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
