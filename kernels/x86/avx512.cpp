// SPDX-License-Identifier: Apache-2.0
// The functions that are faster with AVX-512 than with AVX2. They wait for the long chains of
// operations of Philox or of a logarithm, and these registers do twice as many values in a chain.
// Most other functions wait for memory. The rest at the ends of a run goes through the scalar row.
//
// Compiled with -mavx512vl. So it must not include a header with inline functions that other files
// share: the linker could choose this file's copy for all.
#include "kernels/generic/element_math.hpp"
#include "kernels/isa_rows.hpp"
#include "kernels/x86/vector_pair.hpp"

#include <immintrin.h>

namespace fl {

namespace {

// The machine V of element_math.hpp, with sixteen lanes.
struct Avx512 {
  using Float = __m512;
  using Int = std::int32_t __attribute__((vector_size(64)));
  using Words = __m512i;

  static __m512i raw(Int x) { return reinterpret_cast<__m512i>(x); }
  static Int lanes(__m512i x) { return reinterpret_cast<Int>(x); }
  static Words all_lanes(std::uint32_t x) { return _mm512_set1_epi64(x); }
  static Float constant(float value) { return _mm512_set1_ps(value); }
  static Int bits(Float x) { return reinterpret_cast<Int>(x); }
  static Float from_bits(Int x) { return reinterpret_cast<Float>(x); }
  static Float to_float(Int x) { return _mm512_cvtepi32_ps(raw(x)); }
  static Int round(Float x) { return lanes(_mm512_cvtps_epi32(x)); }
  static Float root(Float x) { return _mm512_sqrt_ps(x); }
  static Float least(Float a, Float b) { return _mm512_min_ps(a, b); }
  static Float greatest(Float a, Float b) { return _mm512_max_ps(a, b); }
  static Int shift_right(Int x, int by) { return lanes(_mm512_srli_epi32(raw(x), by)); }
  static Int shift_right_signed(Int x, int by) { return lanes(_mm512_srai_epi32(raw(x), by)); }
  static Int shift_left(Int x, int by) { return lanes(_mm512_slli_epi32(raw(x), by)); }
  static Int add(Int a, Int b) { return lanes(_mm512_add_epi32(raw(a), raw(b))); }
};

constexpr std::uint64_t line_elements = philox::line_elements;
constexpr std::uint64_t half_line_elements = philox::half_line_elements;

using RoundKeys = philox::RoundKeys<Avx512>;

// The eight blocks of a line. The low half of 64-bit lane k of words[j] is word j of block k. The
// high halves hold the rest of products, which the next multiplication ignores.
struct Line {
  __m512i words[4];
};

[[gnu::always_inline]] inline Line line_at(const RoundKeys& keys, std::uint64_t stream,
                                           std::uint64_t line) {
  const __m512i multiplier_0 = _mm512_set1_epi64(philox::multiplier_0);
  const __m512i multiplier_1 = _mm512_set1_epi64(philox::multiplier_1);
  __m512i x0 = _mm512_add_epi64(_mm512_set1_epi64(static_cast<std::int64_t>(line * 8)),
                                _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
  __m512i x1 = _mm512_srli_epi64(x0, 32);
  __m512i x2 = _mm512_set1_epi64(static_cast<std::int64_t>(stream));
  __m512i x3 = _mm512_set1_epi64(static_cast<std::int64_t>(stream >> 32));
#pragma GCC unroll 10
  for (int round = 0; round < philox::rounds; ++round) {
    const __m512i product_0 = _mm512_mul_epu32(x0, multiplier_0);
    const __m512i product_1 = _mm512_mul_epu32(x2, multiplier_1);
    constexpr int all_three = 0x96;  // Exclusive or.
    x0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(product_1, 32), x1, keys.key_0[round],
                                   all_three);
    x1 = product_1;
    x2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(product_0, 32), x3, keys.key_1[round],
                                   all_three);
    x3 = product_0;
  }
  return {{x0, x1, x2, x3}};
}

// Lane 2k is word k of a, and lane 2k + 1 is word k of b.
Avx512::Int side_by_side(__m512i a, __m512i b) {
  return Avx512::lanes(_mm512_mask_shuffle_epi32(a, 0xAAAA, b, _MM_PERM_CCAA));
}

// Eight words of a line, twice. They have the random bits of sixteen elements: the lower halves of
// lanes 0 to 7, and the upper halves of lanes 8 to 15.
Avx512::Int twice(__m512i words) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14);
  return Avx512::lanes(_mm512_permutexvar_epi32(even, words));
}
// These random bits as the lower halves of their lanes. The upper halves are 0.
Avx512::Int lower_halves(__m512i words) {
  const __m512i by = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 16, 16, 16, 16, 16, 16, 16, 16);
  return Avx512::lanes(_mm512_srlv_epi32(Avx512::raw(twice(words)), by)) & 0xffff;
}
// These random bits as the upper halves of their lanes. The lower halves have any value.
Avx512::Int upper_halves(__m512i words) {
  const __m512i by = _mm512_setr_epi32(16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0);
  return Avx512::lanes(_mm512_sllv_epi32(Avx512::raw(twice(words)), by));
}

void store_levels(std::int16_t* to, Avx512::Int levels) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtsepi32_epi16(Avx512::raw(levels)));
}

}  // namespace

void gaussian_avx512(std::uint64_t seed, std::uint64_t stream, std::uint64_t first, float* out,
                     std::size_t n) {
  const RoundKeys keys(seed);
  // The even and the odd lanes of two registers.
  const __m512i evens =
      _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odds = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  std::size_t i = philox::before_line(first, n);
  scalar_row.gaussian(seed, stream, first, out, i);
  for (; i + 2 * line_elements <= n; i += 2 * line_elements) {
    const std::uint64_t number = (first + i) / line_elements;
    const Line a = line_at(keys, stream, number);
    const Line b = line_at(keys, stream, number + 1);
    VectorPair<Avx512>::Float cosine;
    VectorPair<Avx512>::Float sine;
    element::box_muller<VectorPair<Avx512>>(
        {side_by_side(a.words[0], a.words[2]), side_by_side(b.words[0], b.words[2])},
        {side_by_side(a.words[1], a.words[3]), side_by_side(b.words[1], b.words[3])}, cosine, sine);
    _mm512_storeu_ps(out + i, _mm512_permutex2var_ps(cosine.a, evens, sine.a));
    _mm512_storeu_ps(out + i + 16, _mm512_permutex2var_ps(cosine.a, odds, sine.a));
    _mm512_storeu_ps(out + i + 32, _mm512_permutex2var_ps(cosine.b, evens, sine.b));
    _mm512_storeu_ps(out + i + 48, _mm512_permutex2var_ps(cosine.b, odds, sine.b));
  }
  scalar_row.gaussian(seed, stream, first + i, out + i, n - i);
}

void quantize_avx512(const float* x, std::size_t n, const QuantizeArgs& args,
                     std::int16_t* levels) {
  if (args.first % half_line_elements != 0) return avx2_row.quantize(x, n, args, levels);
  const RoundKeys keys(args.seed);
  const element::QuantizeFactors factors = element::quantize_factors(args.scale, args.levels);
  std::size_t i = 0;
  for (; i + half_line_elements <= n; i += half_line_elements) {
    const Line line = line_at(keys, args.stream, (args.first + i) / half_line_elements);
    for (std::size_t j = 0; j < 4; ++j) {
      store_levels(levels + i + 16 * j,
                   element::quantize<Avx512>(_mm512_loadu_ps(x + i + 16 * j),
                                             lower_halves(line.words[j]), factors));
    }
  }
  QuantizeArgs rest = args;
  rest.first += i;
  scalar_row.quantize(x + i, n - i, rest, levels + i);
}

std::int32_t dither_avx512(const float* x, std::size_t n, const DitherArgs& args,
                           std::int16_t* levels, std::uint8_t* classes) {
  if (args.first % half_line_elements != 0) return avx2_row.dither(x, n, args, levels, classes);
  const RoundKeys keys(args.key);
  const __m512 per_step = _mm512_set1_ps(1.0f / args.step);
  __m512i largest = _mm512_setzero_si512();
  std::size_t i = 0;
  for (; i + half_line_elements <= n; i += half_line_elements) {
    const Line line = line_at(keys, 0, (args.first + i) / half_line_elements);
    for (std::size_t j = 0; j < 4; ++j) {
      const std::size_t at = i + 16 * j;
      const Avx512::Int word = upper_halves(line.words[j]);
      if (classes != nullptr) {
        const auto sixteen = element::dither_class<Avx512>(word, args.class_bits);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(classes + at),
                         _mm512_cvtepi32_epi8(Avx512::raw(sixteen)));
      }
      const auto level = element::dither<Avx512>(_mm512_loadu_ps(x + at), word, per_step);
      largest = _mm512_max_epi32(largest, _mm512_abs_epi32(Avx512::raw(level)));
      store_levels(levels + at, level);
    }
  }
  DitherArgs rest = args;
  rest.first += i;
  const std::int32_t of_rest =
      scalar_row.dither(x + i, n - i, rest, levels + i, classes == nullptr ? nullptr : classes + i);
  const std::int32_t most = _mm512_reduce_max_epi32(largest);
  return most > of_rest ? most : of_rest;
}

void undither_avx512(const std::int16_t* levels, std::size_t n, const DitherArgs& args,
                     float* out) {
  if (args.first % half_line_elements != 0) return avx2_row.undither(levels, n, args, out);
  const RoundKeys keys(args.key);
  const __m512 step = _mm512_set1_ps(args.step);
  std::size_t i = 0;
  for (; i + half_line_elements <= n; i += half_line_elements) {
    const Line line = line_at(keys, 0, (args.first + i) / half_line_elements);
    for (std::size_t j = 0; j < 4; ++j) {
      const std::size_t at = i + 16 * j;
      const auto sixteen = Avx512::lanes(
          _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(levels + at))));
      _mm512_storeu_ps(out + at,
                       element::undither<Avx512>(sixteen, upper_halves(line.words[j]), step));
    }
  }
  DitherArgs rest = args;
  rest.first += i;
  scalar_row.undither(levels + i, n - i, rest, out + i);
}

std::size_t find_at_least_avx512(const void* words, std::size_t n, std::uint32_t least,
                                 std::uint32_t* indices) {
  const auto* const bytes = static_cast<const unsigned char*>(words);
  const __m512i leasts = _mm512_set1_epi32(static_cast<std::int32_t>(least));
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  std::size_t found = 0;
  std::size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    __mmask16 masks[4];
    for (std::size_t k = 0; k < 4; ++k) {
      const __m512i words_k = _mm512_loadu_si512(bytes + 4 * i + 64 * k);
      masks[k] = _mm512_cmpge_epi32_mask(_mm512_and_si512(words_k, magnitude), leasts);
    }
    if ((masks[0] | masks[1] | masks[2] | masks[3]) == 0) continue;
    for (std::size_t k = 0; k < 4; ++k) {
      const auto first = static_cast<std::int32_t>(i + 16 * k);
      // At most i + 16 * k indices were found so far, so there is room to store sixteen.
      _mm512_storeu_si512(
          indices + found,
          _mm512_maskz_compress_epi32(masks[k], _mm512_add_epi32(lanes, _mm512_set1_epi32(first))));
      found += static_cast<std::size_t>(__builtin_popcountll(std::uint64_t{masks[k]}));
    }
  }
  const std::size_t more = scalar_row.find_at_least(bytes + 4 * i, n - i, least, indices + found);
  for (std::size_t k = 0; k < more; ++k) indices[found + k] += static_cast<std::uint32_t>(i);
  return found + more;
}

void dither_classes_avx512(std::size_t n, const DitherArgs& args, std::uint8_t* classes) {
  if (args.first % half_line_elements != 0) return avx2_row.dither_classes(n, args, classes);
  const RoundKeys keys(args.key);
  std::size_t i = 0;
  for (; i + half_line_elements <= n; i += half_line_elements) {
    const Line line = line_at(keys, 0, (args.first + i) / half_line_elements);
    for (std::size_t j = 0; j < 4; ++j) {
      const auto sixteen =
          element::dither_class<Avx512>(upper_halves(line.words[j]), args.class_bits);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(classes + i + 16 * j),
                       _mm512_cvtepi32_epi8(Avx512::raw(sixteen)));
    }
  }
  DitherArgs rest = args;
  rest.first += i;
  scalar_row.dither_classes(n - i, rest, classes + i);
}

}  // namespace fl
