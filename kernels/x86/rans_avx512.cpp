// SPDX-License-Identifier: Apache-2.0
// rANS decoding with AVX-512 BW, VBMI and VBMI2. Registers are as wide as AVX2's, because a step
// with wider ones waits longer. But words get to their lanes, and symbols into order, without a
// table.
//
// Compiled for these instructions. So it must not include a header with inline functions that other
// files share: the linker could choose this file's copy for all.
#include "kernels/isa_rows.hpp"
#include "kernels/x86/rans_decode.hpp"

namespace fl {

namespace {

/// The type V of rans_decode.hpp.
struct Avx512 {
  [[gnu::always_inline]] static __m256i take_words(const rans::Popped& popped,
                                                   const std::uint8_t*& in) {
    // The words become the low halves of the lanes that need one. The old low halves of these lanes
    // were shifted up.
    const __mmask16 wanted = _mm256_test_epi16_mask(popped.below, _mm256_set1_epi32(0xffff));
    const __m256i shift = _mm256_and_si256(popped.below, _mm256_set1_epi32(16));
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
    in += sizeof(std::uint16_t) *
          static_cast<std::uint64_t>(__builtin_popcountll(std::uint64_t{wanted}));
    return _mm256_mask_expand_epi16(_mm256_sllv_epi32(popped.x, shift), wanted,
                                    _mm256_castsi128_si256(words));
  }

  static __m256i symbols_of(__m256i a, __m256i b, __m256i c, __m256i d) {
    const __m256i from =
        _mm256_setr_epi8(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60,  //
                         0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60);
    return _mm256_blend_epi32(_mm256_permutex2var_epi8(a, from, b),
                              _mm256_permutex2var_epi8(c, from, d), 0xF0);
  }
};

}  // namespace

const std::uint8_t* rans_decode_avx512(const rans::Place* places, const std::uint8_t* classes,
                                       std::uint32_t* states, const std::uint8_t* in,
                                       const std::uint8_t* end, std::uint8_t* symbols,
                                       std::size_t n) {
  return rans::decode<Avx512>(places, classes, states, in, end, symbols, n);
}

}  // namespace fl
