// SPDX-License-Identifier: Apache-2.0
// The row for AVX2 and F16C (every x86-64 server since 2015). It works on whole vectors. The rest
// at the ends of a run goes through the scalar row, which gives the same results.
//
// Compiled with -mavx2: must not include inline functions that the linker could use in other files.
#include "kernels/generic/element_math.hpp"
#include "kernels/isa_rows.hpp"

#include <immintrin.h>

namespace fl {

namespace {

// The machine V of element_math.hpp, with eight lanes.
struct Avx2 {
  using Float = __m256;
  using Int = std::int32_t __attribute__((vector_size(32)));
  using Words = __m256i;

  static __m256i raw(Int x) { return reinterpret_cast<__m256i>(x); }
  static Words all_lanes(std::uint32_t x) { return _mm256_set1_epi64x(x); }
  static Float constant(float value) { return _mm256_set1_ps(value); }
  static Int bits(Float x) { return reinterpret_cast<Int>(x); }
  static Float from_bits(Int x) { return reinterpret_cast<Float>(x); }
  static Float to_float(Int x) { return _mm256_cvtepi32_ps(raw(x)); }
  static Int round(Float x) { return reinterpret_cast<Int>(_mm256_cvtps_epi32(x)); }
  static Float root(Float x) { return _mm256_sqrt_ps(x); }
  static Float least(Float a, Float b) { return _mm256_min_ps(a, b); }
  static Float greatest(Float a, Float b) { return _mm256_max_ps(a, b); }
  static Int shift_right(Int x, int by) {
    return reinterpret_cast<Int>(_mm256_srli_epi32(raw(x), by));
  }
  static Int shift_right_signed(Int x, int by) {
    return reinterpret_cast<Int>(_mm256_srai_epi32(raw(x), by));
  }
  static Int shift_left(Int x, int by) {
    return reinterpret_cast<Int>(_mm256_slli_epi32(raw(x), by));
  }
  static Int add(Int a, Int b) { return reinterpret_cast<Int>(_mm256_add_epi32(raw(a), raw(b))); }
};

constexpr std::uint64_t line_elements = philox::line_elements;
constexpr std::uint64_t half_line_elements = philox::half_line_elements;

using RoundKeys = philox::RoundKeys<Avx2>;

// The 32 words of a line, eight to a vector, in order.
struct Line {
  Avx2::Int words[4];
};

// Computes the eight blocks of a line, the even ones in x[0] and the odd ones in x[1]. The low half
// of each 64-bit lane of x[.][j] is word j of one block. The high halves hold the rest of products,
// which the next multiplication ignores. A round waits for its multiplications, so the even and the
// odd blocks are computed side by side, and what needs no product is computed separately.
[[gnu::always_inline]] inline Line line_at(const RoundKeys& keys, std::uint64_t stream,
                                           std::uint64_t line) {
  const __m256i multiplier_0 = _mm256_set1_epi64x(philox::multiplier_0);
  const __m256i multiplier_1 = _mm256_set1_epi64x(philox::multiplier_1);
  const __m256i first = _mm256_set1_epi64x(static_cast<std::int64_t>(line * 8));
  __m256i x[2][4];
  x[0][0] = _mm256_add_epi64(first, _mm256_setr_epi64x(0, 2, 4, 6));
  x[1][0] = _mm256_add_epi64(first, _mm256_setr_epi64x(1, 3, 5, 7));
  for (auto& half : x) {
    half[1] = _mm256_srli_epi64(half[0], 32);
    half[2] = _mm256_set1_epi64x(static_cast<std::int64_t>(stream));
    half[3] = _mm256_set1_epi64x(static_cast<std::int64_t>(stream >> 32));
  }
#pragma GCC unroll 10
  for (int round = 0; round < philox::rounds; ++round) {
#pragma GCC unroll 2
    for (auto& half : x) {
      const __m256i product_0 = _mm256_mul_epu32(half[0], multiplier_0);
      const __m256i product_1 = _mm256_mul_epu32(half[2], multiplier_1);
      half[0] = _mm256_xor_si256(_mm256_srli_epi64(product_1, 32),
                                 _mm256_xor_si256(half[1], keys.key_0[round]));
      half[1] = product_1;
      half[2] = _mm256_xor_si256(_mm256_srli_epi64(product_0, 32),
                                 _mm256_xor_si256(half[3], keys.key_1[round]));
      half[3] = product_0;
    }
  }
  Line out;
  for (int j = 0; j < 4; ++j) {
    out.words[j] = reinterpret_cast<Avx2::Int>(
        _mm256_blend_epi32(x[0][j], _mm256_slli_epi64(x[1][j], 32), 0xAA));
  }
  return out;
}

// Puts the result of packing two registers in order, because packing works on halves of registers.
__m256i in_order(__m256i packed) { return _mm256_permute4x64_epi64(packed, 0b11'01'10'00); }

void to_half(const float* x, std::size_t n, std::uint16_t* out) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), half);
  }
  scalar_row.to_half(x + i, n - i, out + i);
}

void from_half(const std::uint16_t* x, std::size_t n, float* out) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(half));
  }
  scalar_row.from_half(x + i, n - i, out + i);
}

void to_bf16(const float* x, std::size_t n, std::uint16_t* out) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const auto a = element::to_bf16<Avx2>(_mm256_loadu_ps(x + i));
    const auto b = element::to_bf16<Avx2>(_mm256_loadu_ps(x + i + 8));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                        in_order(_mm256_packus_epi32(Avx2::raw(a), Avx2::raw(b))));
  }
  scalar_row.to_bf16(x + i, n - i, out + i);
}

void from_bf16(const std::uint16_t* x, std::size_t n, float* out) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i));
    const auto wide = reinterpret_cast<Avx2::Int>(_mm256_cvtepu16_epi32(narrow));
    _mm256_storeu_ps(out + i, element::from_bf16<Avx2>(wide));
  }
  scalar_row.from_bf16(x + i, n - i, out + i);
}

Scan scan(const float* x, std::size_t n) {
  const __m256i magnitude_mask = _mm256_set1_epi32(0x7fffffff);
  __m256i max_bits = _mm256_setzero_si256();  // Bits order like magnitudes; NaN is the largest.
  __m256d sums[4] = {};
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (std::size_t half = 0; half < 2; ++half) {
      const __m256 v = _mm256_loadu_ps(x + i + 8 * half);
      max_bits =
          _mm256_max_epi32(max_bits, _mm256_and_si256(_mm256_castps_si256(v), magnitude_mask));
      const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(v));
      const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
      sums[2 * half] = _mm256_add_pd(sums[2 * half], _mm256_mul_pd(low, low));
      sums[2 * half + 1] = _mm256_add_pd(sums[2 * half + 1], _mm256_mul_pd(high, high));
    }
  }
  std::int32_t largest[8];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(largest), max_bits);
  std::int32_t top = 0;
  for (const std::int32_t bits : largest) top = bits > top ? bits : top;

  double lanes[element::scan_lanes];
  for (std::size_t k = 0; k < 4; ++k) _mm256_storeu_pd(lanes + 4 * k, sums[k]);
  for (; i < n; ++i) {
    const std::int32_t bits = element::Scalar::bits(x[i]) & 0x7fffffff;
    top = bits > top ? bits : top;
    lanes[i % element::scan_lanes] += static_cast<double>(x[i]) * x[i];
  }
  if (top >= 0x7f800000) return scalar_row.scan(x, n);  // A rare call, which finds the index.
  Scan result;
  result.max_abs = element::Scalar::from_bits(top);
  result.sum_squares = element::add_lanes(lanes);
  result.first_bad = n;
  return result;
}

Range range(const float* x, std::size_t n) {
  if (n < 8) return scalar_row.range(x, n);
  __m256 least = _mm256_loadu_ps(x);
  __m256 most = least;
  std::size_t i = 8;
  for (; i + 8 <= n; i += 8) {
    const __m256 v = _mm256_loadu_ps(x + i);
    least = _mm256_min_ps(least, v);
    most = _mm256_max_ps(most, v);
  }
  float ends[24];  // The two registers, and the last eight elements.
  _mm256_storeu_ps(ends, least);
  _mm256_storeu_ps(ends + 8, most);
  _mm256_storeu_ps(ends + 16, _mm256_loadu_ps(x + n - 8));
  return scalar_row.range(ends, 24);
}

double pack_signs(const float* x, std::size_t n, std::uint8_t* out) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  __m256d sums[4] = {};
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (std::size_t half = 0; half < 2; ++half) {
      const __m256 v = _mm256_loadu_ps(x + i + 8 * half);
      const __m256 is_negative = _mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_LT_OQ);
      out[i / 8 + half] = static_cast<std::uint8_t>(_mm256_movemask_ps(is_negative));
      const __m256 magnitude = _mm256_andnot_ps(sign, v);
      const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(magnitude));
      const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(magnitude, 1));
      sums[2 * half] = _mm256_add_pd(sums[2 * half], low);
      sums[2 * half + 1] = _mm256_add_pd(sums[2 * half + 1], high);
    }
  }
  double lanes[element::scan_lanes];
  for (std::size_t k = 0; k < 4; ++k) _mm256_storeu_pd(lanes + 4 * k, sums[k]);
  element::pack_signs(x, i, n, out, lanes);
  return element::add_lanes(lanes);
}

void unpack_signs(const std::uint8_t* packed, std::size_t n, float scale, float* out) {
  const __m256i to_sign = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256 scales = _mm256_set1_ps(scale);
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i bits = _mm256_sllv_epi32(_mm256_set1_epi32(packed[i / 8]), to_sign);
    const __m256 signs = _mm256_and_ps(_mm256_castsi256_ps(bits), sign);
    _mm256_storeu_ps(out + i, _mm256_xor_ps(scales, signs));
  }
  scalar_row.unpack_signs(packed + i / 8, n - i, scale, out + i);
}

void add_rounded(std::int64_t* sum, const float* x, std::size_t n, double factor) {
  const __m256d factors = _mm256_set1_pd(factor);
  // Adding 1.5 * 2^52 to v, |v| < 2^51, rounds it to an integer, which is then in the low bits. A
  // product can have 62 bits, so its multiple of 2^32 and the rest are rounded one after the other.
  // The rest is exact, and as 2^32 is even, a tie goes to the same integer.
  const __m256d magic = _mm256_set1_pd(0x1.8p52);
  const __m256i magic_bits = _mm256_castpd_si256(magic);
  const __m256d down = _mm256_set1_pd(0x1p-32);
  const __m256d up = _mm256_set1_pd(0x1p32);
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const __m256d v = _mm256_mul_pd(_mm256_cvtps_pd(_mm_loadu_ps(x + i)), factors);
    const __m256d high = _mm256_add_pd(_mm256_mul_pd(v, down), magic);
    const __m256d rest = _mm256_sub_pd(v, _mm256_mul_pd(_mm256_sub_pd(high, magic), up));
    const __m256d low = _mm256_add_pd(rest, magic);
    const __m256i high_bits = _mm256_sub_epi64(_mm256_castpd_si256(high), magic_bits);
    const __m256i low_bits = _mm256_sub_epi64(_mm256_castpd_si256(low), magic_bits);
    const __m256i product = _mm256_add_epi64(_mm256_slli_epi64(high_bits, 32), low_bits);
    auto* place = reinterpret_cast<__m256i*>(sum + i);
    _mm256_storeu_si256(place, _mm256_add_epi64(_mm256_loadu_si256(place), product));
  }
  scalar_row.add_rounded(sum + i, x + i, n - i, factor);
}

// Converts int64 to double, rounded once. Writing the two halves into the mantissas of 2^52 and
// 2^84 makes them doubles. The difference of the high half is exact, so only the sum rounds.
__m256d to_double(__m256i v) {
  const __m256i low_base = _mm256_castpd_si256(_mm256_set1_pd(0x1p52));
  const __m256i high_base = _mm256_castpd_si256(_mm256_set1_pd(0x1p84));
  const __m256i low = _mm256_blend_epi32(v, low_base, 0xAA);
  const __m256i sign = _mm256_set1_epi64x(0x80000000);
  const __m256i high =
      _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(v, 32), sign), high_base);
  const __m256d bases = _mm256_set1_pd(0x1p84 + 0x1p63 + 0x1p52);
  return _mm256_add_pd(_mm256_sub_pd(_mm256_castsi256_pd(high), bases), _mm256_castsi256_pd(low));
}

void scale_fixed(const std::int64_t* sum, std::size_t n, double factor, float* out) {
  const __m256d factors = _mm256_set1_pd(factor);
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sum + i));
    _mm_storeu_ps(out + i, _mm256_cvtpd_ps(_mm256_mul_pd(to_double(v), factors)));
  }
  scalar_row.scale_fixed(sum + i, n - i, factor, out + i);
}

void random_words(std::uint64_t seed, std::uint64_t stream, std::uint32_t* out, std::size_t n) {
  const RoundKeys keys(seed);
  for (std::size_t i = 0; i < n; i += line_elements) {
    const Line line = line_at(keys, stream, i / line_elements);
    std::memcpy(out + i, line.words, (n - i < line_elements ? n - i : line_elements) * sizeof *out);
  }
}

void gaussian(std::uint64_t seed, std::uint64_t stream, std::uint64_t first, float* out,
              std::size_t n) {
  const RoundKeys keys(seed);
  std::size_t i = philox::before_line(first, n);
  scalar_row.gaussian(seed, stream, first, out, i);
  for (; i + line_elements <= n; i += line_elements) {
    const Line line = line_at(keys, stream, (first + i) / line_elements);
    __m256 values[4];
    element::box_muller<Avx2>(line.words[0], line.words[1], values[0], values[1]);
    element::box_muller<Avx2>(line.words[2], line.words[3], values[2], values[3]);
    for (std::size_t j = 0; j < 4; ++j) _mm256_storeu_ps(out + i + 8 * j, values[j]);
  }
  scalar_row.gaussian(seed, stream, first + i, out + i, n - i);
}

void quantize_line(const float* x, const Line& line, const element::QuantizeFactors& factors,
                   std::int16_t* levels) {
  for (std::size_t j = 0; j < 4; ++j) {
    const Avx2::Int word = line.words[j];
    const float* from = x + 16 * j;
    const auto a = element::quantize<Avx2>(_mm256_loadu_ps(from), word & 0xffff, factors);
    const auto b =
        element::quantize<Avx2>(_mm256_loadu_ps(from + 8), Avx2::shift_right(word, 16), factors);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(levels + 16 * j),
                        in_order(_mm256_packs_epi32(Avx2::raw(a), Avx2::raw(b))));
  }
}

void quantize(const float* x, std::size_t n, const QuantizeArgs& args, std::int16_t* levels) {
  const RoundKeys keys(args.seed);
  const element::QuantizeFactors factors = element::quantize_factors(args.scale, args.levels);
  std::size_t count;
  for (std::size_t i = 0; i < n; i += count) {
    const std::uint64_t element = args.first + i;
    const std::size_t in_line = element % half_line_elements;
    count = half_line_elements - in_line < n - i ? half_line_elements - in_line : n - i;
    const Line line = line_at(keys, args.stream, element / half_line_elements);
    if (count == half_line_elements) {
      quantize_line(x + i, line, factors, levels + i);
      continue;
    }
    // A part of a line, with zeros around it.
    float padded[half_line_elements] = {};
    std::int16_t rounded[half_line_elements];
    std::memcpy(padded + in_line, x + i, count * sizeof(float));
    quantize_line(padded, line, factors, rounded);
    std::memcpy(levels + i, rounded + in_line, count * sizeof(std::int16_t));
  }
}

void dequantize(const std::int16_t* levels, std::size_t n, float step, float* out) {
  const __m256 steps = _mm256_set1_ps(step);
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels + i));
    const __m256 wide = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(narrow));
    _mm256_storeu_ps(out + i, _mm256_mul_ps(wide, steps));
  }
  scalar_row.dequantize(levels + i, n - i, step, out + i);
}

void flip_signs(float* x, std::size_t n, float factor, std::uint64_t seed, std::uint64_t stream) {
  constexpr std::size_t line_signs = element::line_signs;
  const RoundKeys keys(seed);
  const __m256 factors = _mm256_set1_ps(factor);
  const __m256i to_sign = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
  const __m256i sign = _mm256_set1_epi32(static_cast<std::int32_t>(0x80000000));
  std::uint32_t words[line_elements];
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    if (i % line_signs == 0) {
      const Line line = line_at(keys, stream, i / line_signs);
      std::memcpy(words, line.words, sizeof words);
    }
    const auto bits = static_cast<std::int32_t>(words[i % line_signs / 32] >> i % 32);
    const __m256i signs =
        _mm256_and_si256(_mm256_sllv_epi32(_mm256_set1_epi32(bits), to_sign), sign);
    _mm256_storeu_ps(x + i, element::flip_sign<Avx2>(_mm256_loadu_ps(x + i), factors,
                                                     reinterpret_cast<Avx2::Int>(signs)));
  }
  element::flip_signs(x, i, n, factor, seed, stream);
}

double nearest(const float* x, std::size_t n, const Centroids& centroids, std::int16_t* levels) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256 values = _mm256_loadu_ps(centroids.values);
  Avx2::Int below[7];
  for (int i = 0; i + 1 < centroids.count; ++i) {
    below[i] = Avx2::bits(_mm256_set1_ps(centroids.thresholds[i])) - 1;
  }
  __m256d sums[4] = {};
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __m256i wide[2];
    for (std::size_t half = 0; half < 2; ++half) {
      const __m256 v = _mm256_loadu_ps(x + i + 8 * half);
      const Avx2::Int m = element::nearest<Avx2>(v, below, centroids.count - 1);
      wide[half] = Avx2::raw(m ^ Avx2::shift_right_signed(Avx2::bits(v), 31));
      const __m256 magnitude = _mm256_andnot_ps(sign, v);
      const __m256 centroid = _mm256_permutevar8x32_ps(values, Avx2::raw(m));
      const __m256d low = _mm256_mul_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(magnitude)),
                                        _mm256_cvtps_pd(_mm256_castps256_ps128(centroid)));
      const __m256d high = _mm256_mul_pd(_mm256_cvtps_pd(_mm256_extractf128_ps(magnitude, 1)),
                                         _mm256_cvtps_pd(_mm256_extractf128_ps(centroid, 1)));
      sums[2 * half] = _mm256_add_pd(sums[2 * half], low);
      sums[2 * half + 1] = _mm256_add_pd(sums[2 * half + 1], high);
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(levels + i),
                        in_order(_mm256_packs_epi32(wide[0], wide[1])));
  }
  double lanes[element::scan_lanes];
  for (std::size_t k = 0; k < 4; ++k) _mm256_storeu_pd(lanes + 4 * k, sums[k]);
  element::nearest(x, i, n, centroids, levels, lanes);
  return element::add_lanes(lanes);
}

void centroids_of(const std::int16_t* levels, std::size_t n, const Centroids& centroids,
                  float* out) {
  const __m256 values = _mm256_loadu_ps(centroids.values);
  const __m256 sign = _mm256_set1_ps(-0.0f);
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i level =
        _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(levels + i)));
    // The permutation uses only the lowest three bits of an index.
    const __m256i m = _mm256_xor_si256(level, _mm256_srai_epi32(level, 31));
    const __m256 signs = _mm256_and_ps(_mm256_castsi256_ps(level), sign);
    _mm256_storeu_ps(out + i, _mm256_xor_ps(_mm256_permutevar8x32_ps(values, m), signs));
  }
  scalar_row.centroids_of(levels + i, n - i, centroids, out + i);
}

__m256i load_levels(const std::int16_t* levels) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(levels));
}

// The largest of sixteen levels and of_rest.
std::int32_t largest_of(__m256i sixteen, std::int32_t of_rest) {
  std::int16_t each[16];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(each), sixteen);
  for (const std::int16_t level : each) of_rest = level > of_rest ? level : of_rest;
  return of_rest;
}

// Stores the classes of a line's 64 elements.
void store_classes(const Line& line, int bits, std::uint8_t* classes) {
  __m256i sixteen[4];
  for (std::size_t j = 0; j < 4; ++j) {
    const auto a = element::dither_class<Avx2>(Avx2::shift_left(line.words[j], 16), bits);
    const auto b = element::dither_class<Avx2>(line.words[j], bits);
    sixteen[j] = in_order(_mm256_packs_epi32(Avx2::raw(a), Avx2::raw(b)));
  }
  for (std::size_t j = 0; j < 4; j += 2) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(classes + 16 * j),
                        in_order(_mm256_packus_epi16(sixteen[j], sixteen[j + 1])));
  }
}

// A codec's blocks start at element 0 of their key's stream, so only this case needs to be fast.
std::int32_t dither(const float* x, std::size_t n, const DitherArgs& args, std::int16_t* levels,
                    std::uint8_t* classes) {
  if (args.first % half_line_elements != 0) {
    return scalar_row.dither(x, n, args, levels, classes);
  }
  const RoundKeys keys(args.key);
  const __m256 per_step = _mm256_set1_ps(1.0f / args.step);
  const std::uint64_t first_line = args.first / half_line_elements;
  __m256i largest = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + half_line_elements <= n; i += half_line_elements) {
    const Line line = line_at(keys, 0, first_line + i / half_line_elements);
    if (classes != nullptr) store_classes(line, args.class_bits, classes + i);
    for (std::size_t j = 0; j < 4; ++j) {
      const float* from = x + i + 16 * j;
      const auto low = Avx2::shift_left(line.words[j], 16);
      const auto a = element::dither<Avx2>(_mm256_loadu_ps(from), low, per_step);
      const auto b = element::dither<Avx2>(_mm256_loadu_ps(from + 8), line.words[j], per_step);
      const __m256i both = in_order(_mm256_packs_epi32(Avx2::raw(a), Avx2::raw(b)));
      largest = _mm256_max_epi16(largest, _mm256_abs_epi16(both));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(levels + i + 16 * j), both);
    }
  }
  DitherArgs rest = args;
  rest.first += i;
  return largest_of(largest, scalar_row.dither(x + i, n - i, rest, levels + i,
                                               classes == nullptr ? nullptr : classes + i));
}

void undither(const std::int16_t* levels, std::size_t n, const DitherArgs& args, float* out) {
  if (args.first % half_line_elements != 0) {
    scalar_row.undither(levels, n, args, out);
    return;
  }
  const RoundKeys keys(args.key);
  const __m256 step = _mm256_set1_ps(args.step);
  const std::uint64_t first_line = args.first / half_line_elements;
  std::size_t i = 0;
  for (; i + half_line_elements <= n; i += half_line_elements) {
    const Line line = line_at(keys, 0, first_line + i / half_line_elements);
    for (std::size_t j = 0; j < 4; ++j) {
      const __m256i both = load_levels(levels + i + 16 * j);
      const auto a = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(both));
      const auto b = _mm256_cvtepi16_epi32(_mm256_extracti128_si256(both, 1));
      const auto low = Avx2::shift_left(line.words[j], 16);
      float* to = out + i + 16 * j;
      _mm256_storeu_ps(to, element::undither<Avx2>(reinterpret_cast<Avx2::Int>(a), low, step));
      _mm256_storeu_ps(
          to + 8, element::undither<Avx2>(reinterpret_cast<Avx2::Int>(b), line.words[j], step));
    }
  }
  DitherArgs rest = args;
  rest.first += i;
  scalar_row.undither(levels + i, n - i, rest, out + i);
}

void dither_classes(std::size_t n, const DitherArgs& args, std::uint8_t* classes) {
  if (args.first % half_line_elements != 0) {
    scalar_row.dither_classes(n, args, classes);
    return;
  }
  const RoundKeys keys(args.key);
  const std::uint64_t first_line = args.first / half_line_elements;
  std::size_t i = 0;
  for (; i + half_line_elements <= n; i += half_line_elements) {
    const Line line = line_at(keys, 0, first_line + i / half_line_elements);
    store_classes(line, args.class_bits, classes + i);
  }
  DitherArgs rest = args;
  rest.first += i;
  scalar_row.dither_classes(n - i, rest, classes + i);
}

std::int32_t round(const float* x, std::size_t n, float step, std::int16_t* levels) {
  const __m256 per_step = _mm256_set1_ps(1.0f / step);
  __m256i largest = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const auto a = element::round_level<Avx2>(_mm256_loadu_ps(x + i) * per_step);
    const auto b = element::round_level<Avx2>(_mm256_loadu_ps(x + i + 8) * per_step);
    const __m256i both = in_order(_mm256_packs_epi32(Avx2::raw(a), Avx2::raw(b)));
    largest = _mm256_max_epi16(largest, _mm256_abs_epi16(both));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(levels + i), both);
  }
  return largest_of(largest, scalar_row.round(x + i, n - i, step, levels + i));
}

float dot(const float* x, const float* y, std::size_t n) {
  __m256 sums[4] = {};
  std::size_t i = 0;
  for (; i + element::dot_lanes <= n; i += element::dot_lanes) {
    for (std::size_t k = 0; k < 4; ++k) {
      sums[k] += _mm256_loadu_ps(x + i + 8 * k) * _mm256_loadu_ps(y + i + 8 * k);
    }
  }
  float lanes[element::dot_lanes];
  for (std::size_t k = 0; k < 4; ++k) _mm256_storeu_ps(lanes + 8 * k, sums[k]);
  return element::finish_dot(x, y, i, n, lanes);
}

// Bit k says whether the magnitude of value k of eight is at least `below` + 1.
std::uint32_t at_least(const unsigned char* eight, __m256i below) {
  const __m256i magnitude = _mm256_and_si256(
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(eight)), _mm256_set1_epi32(0x7fffffff));
  const __m256i found = _mm256_cmpgt_epi32(magnitude, below);
  return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(found)));
}

std::size_t find_at_least(const void* words, std::size_t n, std::uint32_t least,
                          std::uint32_t* indices) {
  const auto* const bytes = static_cast<const unsigned char*>(words);
  const __m256i below = _mm256_set1_epi32(static_cast<std::int32_t>(least) - 1);
  std::size_t found = 0;
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const unsigned char* const at = bytes + 4 * i;
    std::uint32_t mask = at_least(at, below) | at_least(at + 32, below) << 8 |
                         at_least(at + 64, below) << 16 | at_least(at + 96, below) << 24;
    for (; mask != 0; mask &= mask - 1) {
      indices[found++] =
          static_cast<std::uint32_t>(i) + static_cast<std::uint32_t>(__builtin_ctz(mask));
    }
  }
  const std::size_t more = scalar_row.find_at_least(bytes + 4 * i, n - i, least, indices + found);
  for (std::size_t k = 0; k < more; ++k) indices[found + k] += static_cast<std::uint32_t>(i);
  return found + more;
}

void optimizer_step(const StepVectors& vectors, std::size_t n, const StepArgs& args) {
  const auto at = [](const float* values, std::size_t i) {
    return values == nullptr ? _mm256_setzero_ps() : _mm256_loadu_ps(values + i);
  };
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    element::StepValues<Avx2> x = {at(vectors.weights, i), at(vectors.gradient, i),
                                   at(vectors.start, i),   at(vectors.correction, i),
                                   at(vectors.first, i),   at(vectors.second, i)};
    element::step<Avx2>(x, args, vectors.correction != nullptr);
    _mm256_storeu_ps(vectors.weights + i, x.weight);
    _mm256_storeu_ps(vectors.gradient + i, _mm256_setzero_ps());
    if (vectors.first != nullptr) _mm256_storeu_ps(vectors.first + i, x.first);
    if (vectors.second != nullptr) _mm256_storeu_ps(vectors.second + i, x.second);
  }
  scalar_row.optimizer_step(vectors.from(i), n - i, args);
}

void add_scaled(float* sum, const float* x, std::size_t n, float factor) {
  const __m256 factors = _mm256_set1_ps(factor);
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(sum + i, _mm256_loadu_ps(sum + i) + _mm256_loadu_ps(x + i) * factors);
  }
  scalar_row.add_scaled(sum + i, x + i, n - i, factor);
}

}  // namespace

const Kernels avx2_row = {
    .name = "avx2",
    .to_half = to_half,
    .from_half = from_half,
    .to_bf16 = to_bf16,
    .from_bf16 = from_bf16,
    .scan = scan,
    .range = range,
    .pack_signs = pack_signs,
    .unpack_signs = unpack_signs,
    .add_rounded = add_rounded,
    .scale_fixed = scale_fixed,
    .random_words = random_words,
    .gaussian = gaussian,
    .quantize = quantize,
    .dequantize = dequantize,
    .hadamard = hadamard_avx2,
    .flip_signs = flip_signs,
    .nearest = nearest,
    .centroids_of = centroids_of,
    .dither = dither,
    .undither = undither,
    .dither_classes = dither_classes,
    .round = round,
    .dot = dot,
    .add_scaled = add_scaled,
    .optimizer_step = optimizer_step,
    .find_at_least = find_at_least,
    .count_symbols = count_symbols_avx2,
    .rans_encode = rans_encode_avx2,
    .rans_decode = rans_decode_avx2,
};

}  // namespace fl
