// rANS decoding with AVX-512: in registers as wide as AVX2's, because a step of wider ones waits
// longer; but words find their lanes without a table.
//
// Compiled with -mavx512vl: includes no header with inline functions that another file could share.
#include "kernels/rans_decode.hpp"
#include "kernels/rows.hpp"

namespace fl {

namespace {

/// What rans_decode.hpp asks of a row.
struct Avx512 {
  [[gnu::always_inline]] static __m256i take_words(__m256i x, const std::uint8_t*& in) {
    const __mmask8 below = _mm256_cmplt_epu32_mask(x, _mm256_set1_epi32(rans::state_min));
    const __m256i words =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
    in += sizeof(std::uint16_t) *
          static_cast<std::uint64_t>(__builtin_popcountll(std::uint64_t{below}));
    return _mm256_or_si256(_mm256_mask_slli_epi32(x, below, x, 16),
                           _mm256_maskz_expand_epi32(below, words));
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
