// SPDX-License-Identifier: Apache-2.0
// rANS of the AVX2 row. The states of the 32 lanes are in four registers (Giesen 2014,
// arXiv:1402.3392, section 4). Words are read and written for eight lanes at once. A mask tells
// which lanes have a word, and selects a shuffle.
//
// Compiled with -mavx2. So it must not include a header with inline functions that other files
// share: the linker could choose this file's copy for all.
#include "kernels/isa_rows.hpp"
#include "kernels/x86/rans_decode.hpp"

#include <immintrin.h>

namespace fl {

namespace {

struct Shuffles {
  // Word k goes to the k-th lane that is in the mask. The other lanes become 0.
  alignas(32) std::uint8_t spread[256][32];
  // The words of the lanes in the mask become the last words, in order.
  alignas(16) std::uint8_t gather[256][rans::words_bytes];
};

constexpr Shuffles make_shuffles() {
  constexpr std::uint8_t zero = 0x80;
  Shuffles out{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    for (std::uint8_t& byte : out.spread[mask]) byte = zero;
    for (std::uint8_t& byte : out.gather[mask]) byte = zero;
    unsigned word = 0;
    const unsigned unused = 8 - static_cast<unsigned>(__builtin_popcount(mask));
    for (unsigned lane = 0; lane < 8; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      for (unsigned byte = 0; byte < 2; ++byte) {
        out.spread[mask][4 * lane + byte] = static_cast<std::uint8_t>(2 * word + byte);
        out.gather[mask][2 * (unused + word) + byte] = static_cast<std::uint8_t>(2 * lane + byte);
      }
      ++word;
    }
  }
  return out;
}

constexpr Shuffles shuffles = make_shuffles();

using rans::load;
using rans::store;
__m128i load_half(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }

std::uint64_t sign_mask(__m256i x) {
  return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(x)));
}

/// Each lane is that of b if the sign bit of `choice` is set, else that of a.
__m256i choose(__m256i choice, __m256i a, __m256i b) {
  return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b),
                                              _mm256_castsi256_ps(choice)));
}

/// rans::Code of eight lanes.
struct Codes {
  __m256i inverse, shift, rest, bias;
};

Codes codes_of(const rans::Code* codes, const std::uint8_t* symbols) {
  __m256i pair[4];  // The complete codes of lanes k and k + 4.
  for (std::size_t k = 0; k < 4; ++k) {
    pair[k] = _mm256_inserti128_si256(_mm256_castsi128_si256(load_half(codes + symbols[k])),
                                      load_half(codes + symbols[k + 4]), 1);
  }
  const __m256i low_01 = _mm256_unpacklo_epi32(pair[0], pair[1]);
  const __m256i low_23 = _mm256_unpacklo_epi32(pair[2], pair[3]);
  const __m256i high_01 = _mm256_unpackhi_epi32(pair[0], pair[1]);
  const __m256i high_23 = _mm256_unpackhi_epi32(pair[2], pair[3]);
  return {_mm256_unpacklo_epi64(low_01, low_23), _mm256_unpackhi_epi64(low_01, low_23),
          _mm256_unpacklo_epi64(high_01, high_23), _mm256_unpackhi_epi64(high_01, high_23)};
}

/// rans::push of eight lanes.
__m256i push(__m256i x, const Codes& codes) {
  const __m256i even = _mm256_mul_epu32(x, codes.inverse);
  const __m256i odd =
      _mm256_mul_epu32(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(codes.inverse, 32));
  const __m256i high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  const __m256i quotient = _mm256_srlv_epi32(high, codes.shift);
  return _mm256_add_epi32(_mm256_add_epi32(x, codes.bias),
                          _mm256_mullo_epi32(quotient, codes.rest));
}

/// rans::push of eight symbols. First writes the words that must go, below `out`. Returns the new
/// states.
[[gnu::always_inline]] inline __m256i encode_eight(const rans::Code* codes,
                                                   const std::uint8_t* symbols, __m256i x,
                                                   std::uint8_t*& out) {
  const Codes these = codes_of(codes, symbols);
  // The sign bit is the result of rans::is_full().
  const __m256i full = _mm256_add_epi32(x, _mm256_slli_epi32(these.rest, 31 - rans::bits));
  const std::uint64_t mask = sign_mask(full);
  const __m256i low = _mm256_blend_epi16(x, _mm256_setzero_si256(), 0xAA);
  const __m128i words =
      _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  // All eight words are stored. Those below the new `out` are overwritten later.
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out - rans::words_bytes),
                   _mm_shuffle_epi8(words, load_half(shuffles.gather[mask])));
  out -= sizeof(std::uint16_t) * __builtin_popcountll(mask);
  return push(choose(full, x, _mm256_srli_epi32(x, 16)), these);
}

/// The type V of rans_decode.hpp.
struct Avx2 {
  [[gnu::always_inline]] static __m256i take_words(const rans::Popped& popped,
                                                   const std::uint8_t*& in) {
    const std::uint64_t mask = sign_mask(popped.below);
    const __m256i words = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_half(in)),
                                              load(shuffles.spread[mask]));
    in += sizeof(std::uint16_t) * static_cast<std::uint64_t>(__builtin_popcountll(mask));
    return _mm256_or_si256(choose(popped.below, popped.x, _mm256_slli_epi32(popped.x, 16)), words);
  }

  static __m256i symbols_of(__m256i a, __m256i b, __m256i c, __m256i d) {
    const __m256i byte = _mm256_set1_epi32(0xff);
    const __m256i packed = _mm256_packus_epi16(
        _mm256_packus_epi32(_mm256_and_si256(a, byte), _mm256_and_si256(b, byte)),
        _mm256_packus_epi32(_mm256_and_si256(c, byte), _mm256_and_si256(d, byte)));
    // Packing works on halves of registers. The permutation puts the result in order.
    return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
};

// If there are few different symbols, 32 at a time are compared with each of them. For 17 different
// symbols this is twice as fast as counting in a table, and for 40 it is no faster.
constexpr std::size_t compared_symbols_max = 32;
constexpr std::size_t compared_at_once = 8;

/// Counts how often the eight symbols from `first` on occur, and adds this to `counts`. n is a
/// multiple of 32.
void count_eight(const std::uint8_t* symbols, std::size_t n, std::size_t first,
                 std::uint32_t* counts) {
  constexpr std::size_t sums_max = 255 * sizeof(__m256i);  // A byte cannot count further.
  for (std::size_t begin = 0; begin < n; begin += sums_max) {
    const std::size_t end = n - begin < sums_max ? n : begin + sums_max;
    __m256i sums[compared_at_once] = {};
    __m256i wanted[compared_at_once];
    for (std::size_t k = 0; k < compared_at_once; ++k)
      wanted[k] = _mm256_set1_epi8(static_cast<char>(first + k));
    for (std::size_t i = begin; i < end; i += sizeof(__m256i)) {
      const __m256i these = load(symbols + i);
      for (std::size_t k = 0; k < compared_at_once; ++k)
        sums[k] = _mm256_sub_epi8(sums[k], _mm256_cmpeq_epi8(these, wanted[k]));
    }
    for (std::size_t k = 0; k < compared_at_once; ++k) {
      std::uint64_t four[4];
      store(four, _mm256_sad_epu8(sums[k], _mm256_setzero_si256()));
      counts[first + k] += static_cast<std::uint32_t>(four[0] + four[1] + four[2] + four[3]);
    }
  }
}

std::uint8_t largest_of(const std::uint8_t* symbols, std::size_t n) {
  __m256i most = _mm256_setzero_si256();
  for (std::size_t i = 0; i < n; i += sizeof(__m256i))
    most = _mm256_max_epu8(most, load(symbols + i));
  std::uint8_t each[sizeof(__m256i)];
  store(each, most);
  std::uint8_t largest = 0;
  for (const std::uint8_t of : each) largest = of > largest ? of : largest;
  return largest;
}

}  // namespace

void count_symbols_avx2(const std::uint8_t* symbols, std::size_t n, std::uint32_t* counts) {
  const std::size_t whole = n - n % sizeof(__m256i);
  const std::size_t different = std::size_t{largest_of(symbols, whole)} + 1;
  if (different > compared_symbols_max) return count_symbols(symbols, n, counts);
  count_symbols(symbols + whole, n - whole, counts);
  for (std::size_t first = 0; first < different; first += compared_at_once)
    count_eight(symbols, whole, first, counts);
}

std::uint8_t* rans_encode_avx2(const rans::Code* codes, const std::uint8_t* symbols, std::size_t n,
                               std::uint32_t* states, std::uint8_t* out) {
  // Four variables and not an array, so that the compiler keeps them in registers.
  __m256i x0 = load(states);
  __m256i x1 = load(states + 8);
  __m256i x2 = load(states + 16);
  __m256i x3 = load(states + 24);
  for (std::size_t i = n; i > 0; i -= rans::lanes_max) {
    const std::uint8_t* step = symbols + i - rans::lanes_max;
    x3 = encode_eight(codes, step + 24, x3, out);
    x2 = encode_eight(codes, step + 16, x2, out);
    x1 = encode_eight(codes, step + 8, x1, out);
    x0 = encode_eight(codes, step, x0, out);
  }
  store(states, x0);
  store(states + 8, x1);
  store(states + 16, x2);
  store(states + 24, x3);
  return out;
}

const std::uint8_t* rans_decode_avx2(const rans::Place* places, const std::uint8_t* classes,
                                     std::uint32_t* states, const std::uint8_t* in,
                                     const std::uint8_t* end, std::uint8_t* symbols,
                                     std::size_t n) {
  return rans::decode<Avx2>(places, classes, states, in, end, symbols, n);
}

}  // namespace fl
