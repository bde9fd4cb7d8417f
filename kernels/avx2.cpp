// The row for AVX2 and F16C (every x86-64 server since 2015). Runs are cut into whole vectors; what
// is left at the ends goes through the scalar row, whose results are the same.
//
// Compiled with -mavx2: includes no header with inline functions that another file could share.
#include "kernels/element.hpp"
#include "kernels/rows.hpp"

#include <immintrin.h>

namespace fl {

namespace {

// Eight lanes of the arithmetic in element.hpp.
struct Avx2 {
  using Float = __m256;
  using Int = std::int32_t __attribute__((vector_size(32)));

  static __m256i raw(Int x) { return reinterpret_cast<__m256i>(x); }
  static Float constant(float value) { return _mm256_set1_ps(value); }
  static Int bits(Float x) { return reinterpret_cast<Int>(x); }
  static Float from_bits(Int x) { return reinterpret_cast<Float>(x); }
  static Float to_float(Int x) { return _mm256_cvtepi32_ps(raw(x)); }
  static Int truncate(Float x) { return reinterpret_cast<Int>(_mm256_cvttps_epi32(x)); }
  static Float root(Float x) { return _mm256_sqrt_ps(x); }
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

// Four Philox blocks, word j in the low half of each 64-bit lane of x[j]. The high halves hold
// leftovers of the products, which the next round's multiplication does not see.
struct FourBlocks {
  __m256i x[4];
};

FourBlocks four_blocks(__m256i indices, std::uint64_t stream, std::uint32_t key_0,
                       std::uint32_t key_1) {
  const __m256i multiplier_0 = _mm256_set1_epi64x(philox::multiplier_0);
  const __m256i multiplier_1 = _mm256_set1_epi64x(philox::multiplier_1);
  __m256i x0 = indices;
  __m256i x1 = _mm256_srli_epi64(indices, 32);
  __m256i x2 = _mm256_set1_epi64x(static_cast<std::int64_t>(stream));
  __m256i x3 = _mm256_set1_epi64x(static_cast<std::int64_t>(stream >> 32));
  for (int round = 0; round < philox::rounds; ++round) {
    const __m256i product_0 = _mm256_mul_epu32(x0, multiplier_0);
    const __m256i product_1 = _mm256_mul_epu32(x2, multiplier_1);
    x0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product_1, 32), x1),
                          _mm256_set1_epi64x(key_0));
    x1 = product_1;
    x2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product_0, 32), x3),
                          _mm256_set1_epi64x(key_1));
    x3 = product_0;
    key_0 += philox::key_step_0;
    key_1 += philox::key_step_1;
  }
  return {{x0, x1, x2, x3}};
}

// The 32 words of a line, eight to a vector, in order.
struct Line {
  Avx2::Int words[4];
};

Line line_at(std::uint64_t seed, std::uint64_t stream, std::uint64_t line) {
  const auto key_0 = static_cast<std::uint32_t>(seed);
  const auto key_1 = static_cast<std::uint32_t>(seed >> 32);
  const __m256i first = _mm256_set1_epi64x(static_cast<std::int64_t>(line * 8));
  const FourBlocks even =
      four_blocks(_mm256_add_epi64(first, _mm256_setr_epi64x(0, 2, 4, 6)), stream, key_0, key_1);
  const FourBlocks odd =
      four_blocks(_mm256_add_epi64(first, _mm256_setr_epi64x(1, 3, 5, 7)), stream, key_0, key_1);
  Line out;
  for (int j = 0; j < 4; ++j) {
    out.words[j] = reinterpret_cast<Avx2::Int>(
        _mm256_blend_epi32(even.x[j], _mm256_slli_epi64(odd.x[j], 32), 0xAA));
  }
  return out;
}

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

Scan scan(const float* x, std::size_t n) {
  const __m256i magnitude_mask = _mm256_set1_epi32(0x7fffffff);
  __m256i max_bits = _mm256_setzero_si256();  // Magnitudes order like their bits, NaN on top.
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
  if (top >= 0x7f800000) return scalar_row.scan(x, n);  // Rare: finds where.
  Scan result;
  result.max_abs = element::Scalar::from_bits(top);
  result.sum_squares = element::add_lanes(lanes);
  result.first_bad = n;
  return result;
}

void add_fixed(std::int64_t* sum, const float* x, std::size_t n, int fraction_bits,
               std::int64_t weight) {
  // A negative weight moves to the scale: rounding to nearest even is symmetric.
  const double power = __builtin_ldexp(1.0, fraction_bits);
  const __m256d scale = _mm256_set1_pd(weight < 0 ? -power : power);
  const __m256i factor = _mm256_set1_epi64x(weight < 0 ? -weight : weight);
  // Adding 1.5 * 2^52 to |v| < 2^51 rounds v to an integer, which then stands in the low bits.
  const __m256d magic = _mm256_set1_pd(0x1.8p52);
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const __m256d v = _mm256_mul_pd(_mm256_cvtps_pd(_mm_loadu_ps(x + i)), scale);
    const __m256i fixed =
        _mm256_sub_epi64(_mm256_castpd_si256(_mm256_add_pd(v, magic)), _mm256_castpd_si256(magic));
    // fixed * factor modulo 2^64, factor below 2^32.
    const __m256i low = _mm256_mul_epu32(fixed, factor);
    const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(fixed, 32), factor);
    const __m256i product = _mm256_add_epi64(low, _mm256_slli_epi64(high, 32));
    auto* place = reinterpret_cast<__m256i*>(sum + i);
    _mm256_storeu_si256(place, _mm256_add_epi64(_mm256_loadu_si256(place), product));
  }
  scalar_row.add_fixed(sum + i, x + i, n - i, fraction_bits, weight);
}

// int64 to double, rounded once. The two halves become doubles by writing them into the mantissas
// of 2^52 and 2^84; the difference of the high half is exact, and the sum rounds.
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

// How many of the n elements from `first` on come before the next whole line.
std::size_t before_line(std::uint64_t first, std::size_t n) {
  const std::size_t head = (line_elements - first % line_elements) % line_elements;
  return head < n ? head : n;
}

void gaussian(std::uint64_t seed, std::uint64_t stream, std::uint64_t first, float* out,
              std::size_t n) {
  std::size_t i = before_line(first, n);
  scalar_row.gaussian(seed, stream, first, out, i);
  for (; i + line_elements <= n; i += line_elements) {
    const Line line = line_at(seed, stream, (first + i) / line_elements);
    __m256 values[4];
    element::box_muller<Avx2>(line.words[0], line.words[1], values[0], values[1]);
    element::box_muller<Avx2>(line.words[2], line.words[3], values[2], values[3]);
    for (std::size_t j = 0; j < 4; ++j) _mm256_storeu_ps(out + i + 8 * j, values[j]);
  }
  scalar_row.gaussian(seed, stream, first + i, out + i, n - i);
}

void quantize_end(const float* x, std::size_t begin, std::size_t end, const QuantizeArgs& args,
                  std::int16_t* levels) {
  QuantizeArgs part = args;
  part.first += begin;
  scalar_row.quantize(x + begin, end - begin, part, levels + begin);
}

void quantize(const float* x, std::size_t n, const QuantizeArgs& args, std::int16_t* levels) {
  const __m256 scale = _mm256_set1_ps(args.scale);
  const __m256 top = _mm256_set1_ps(static_cast<float>(args.levels));
  std::size_t i = before_line(args.first, n);
  quantize_end(x, 0, i, args, levels);
  for (; i + line_elements <= n; i += line_elements) {
    const Line line = line_at(args.seed, args.stream, (args.first + i) / line_elements);
    for (std::size_t j = 0; j < 4; j += 2) {
      const float* from = x + i + 8 * j;
      const auto a = element::quantize<Avx2>(_mm256_loadu_ps(from), line.words[j], scale, top);
      const auto b =
          element::quantize<Avx2>(_mm256_loadu_ps(from + 8), line.words[j + 1], scale, top);
      // Packing works on halves of the registers; the permutation puts them back in order.
      const __m256i packed =
          _mm256_permute4x64_epi64(_mm256_packs_epi32(Avx2::raw(a), Avx2::raw(b)), 0b11'01'10'00);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(levels + i + 8 * j), packed);
    }
  }
  quantize_end(x, i, n, args, levels);
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

}  // namespace

const Kernels avx2_row = {
    .name = "avx2",
    .to_half = to_half,
    .from_half = from_half,
    .scan = scan,
    .add_fixed = add_fixed,
    .scale_fixed = scale_fixed,
    .gaussian = gaussian,
    .quantize = quantize,
    .dequantize = dequantize,
    .count_symbols = count_symbols,
    .rans_encode = rans_encode_avx2,
    .rans_decode = rans_decode_avx2,
};

}  // namespace fl
