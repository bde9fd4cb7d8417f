// SPDX-License-Identifier: Apache-2.0
// How the SIMD rows decode rANS, written once for all of them. The states of the 32 lanes are in
// four AVX2 registers. A row passes a type V with
//
//   take_words(popped, in)  Returns the states. Shifts a word of `in` into each state that is below
//                           state_min, in the order of the lanes, and moves `in` behind them.
//   symbols_of(a, b, c, d)  Returns the symbols of 32 places, which are their low bytes, in order.
//
// V is in an unnamed namespace, so that each file has its own copy of these functions. One program
// compiles them with different machine options.
#pragma once

#include "kernels/generic/rans_step.hpp"

#include <immintrin.h>

namespace fl::rans {

/// The most bytes that the words of eight lanes have.
inline constexpr std::size_t words_bytes = 8 * sizeof(std::uint16_t);

/// Eight lanes after pop(): the states x, and in `below` all bits of a lane if its state is below
/// state_min.
struct Popped {
  __m256i x, below;
};

static inline __m256i load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
static inline void store(void* to, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(to), x); }

/// The places of eight lanes, whose states have these low bits. Loads to all lanes and blends are
/// faster than AMD's gather instruction.
[[gnu::always_inline]] static inline __m256i places_at(const Place* places, __m256i low) {
  const auto place = [places](std::uint64_t at) {
    return _mm256_set1_epi32(static_cast<int>(places[at]));
  };
  const auto pair = [place](std::uint64_t two) {
    return _mm256_blend_epi32(place(static_cast<std::uint32_t>(two)), place(two >> 32), 0xAA);
  };
  std::uint64_t two[4];  // The compiler takes the register apart; no memory.
  store(two, low);
  // The last ones first, because they take the longest to get out of the register.
  const __m256i p67 = pair(two[3]);
  const __m256i p45 = pair(two[2]);
  const __m256i p23 = pair(two[1]);
  const __m256i p01 = pair(two[0]);
  return _mm256_blend_epi32(_mm256_blend_epi32(p01, p23, 0xCC), _mm256_blend_epi32(p45, p67, 0xCC),
                            0xF0);
}

/// pop() of eight lanes. `offset` is the offset in `place`.
static inline Popped pop_eight(__m256i x, __m256i place, __m256i offset) {
  const __m256i product =
      _mm256_mullo_epi32(_mm256_srli_epi32(place, 20), _mm256_srli_epi32(x, bits));
  // Compares without waiting for the sum, because the next step waits for the words.
  const __m256i least = _mm256_sub_epi32(_mm256_set1_epi32(state_min), offset);
  return {_mm256_add_epi32(product, offset), _mm256_cmpgt_epi32(least, product)};
}

/// Looks up places in memory.
template <bool has_classes>
struct Table {
  const Place* places;
  const std::uint8_t* classes;

  /// pop() of eight lanes. Also writes their places.
  [[gnu::always_inline]] Popped pop(std::size_t i, __m256i x, __m256i& place) const {
    const __m256i low_bits = _mm256_set1_epi32(total - 1);
    __m256i at = _mm256_and_si256(x, low_bits);
    if constexpr (has_classes) {
      const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(classes + i));
      at = _mm256_or_si256(at, _mm256_slli_epi32(_mm256_cvtepu8_epi32(eight), bits));
    }
    place = places_at(places, at);
    const __m256i offset = _mm256_and_si256(_mm256_srli_epi32(place, 8), low_bits);
    return pop_eight(x, place, offset);
  }
};

inline constexpr int few_symbols_max = 8;

/// For up to eight symbols: finds places by comparing with the starts of the symbols' ranges. A
/// step waits half as long for this as for memory. `steps` is at least the number of symbols minus
/// one.
template <int steps>
struct Few {
  // Entry -k modulo 8 is for the symbol whose range has k starts beyond it.
  __m256i first_places;
  __m256i begins;
  __m256i from[steps];

  [[gnu::always_inline]] Popped pop(std::size_t, __m256i x, __m256i& place) const {
    const __m256i at = _mm256_and_si256(x, _mm256_set1_epi32(total - 1));
    __m256i entry = _mm256_cmpgt_epi32(from[0], at);  // -1 if the start lies beyond.
#pragma GCC unroll 7
    for (int k = 1; k < steps; ++k) {
      entry = _mm256_add_epi32(entry, _mm256_cmpgt_epi32(from[k], at));
    }
    place = _mm256_permutevar8x32_epi32(first_places, entry);
    const __m256i offset = _mm256_sub_epi32(at, _mm256_permutevar8x32_epi32(begins, entry));
    return pop_eight(x, place, offset);
  }
};

/// rans::pop() of eight lanes, and then reads their words. Returns their places.
template <class V, class Places>
[[gnu::always_inline]] static inline __m256i decode_eight(const Places& places, std::size_t i,
                                                          __m256i& x, const std::uint8_t*& in) {
  __m256i place;
  x = V::take_words(places.pop(i, x, place), in);
  return place;
}

/// Kernels::rans_decode(), with places from a Table or a Few.
template <class V, class Places>
static const std::uint8_t* decode_with(const Places& places, std::uint32_t* states,
                                       const std::uint8_t* in, const std::uint8_t* end,
                                       std::uint8_t* symbols, std::size_t n) {
  constexpr std::ptrdiff_t step_bytes = 4 * words_bytes;  // The most bytes that a step may load.
  const std::uint8_t* const stream_end = end;
  std::uint8_t last_words[2 * step_bytes] = {};
  // Four variables and not an array, so that the compiler keeps them in registers.
  __m256i x0 = load(states);
  __m256i x1 = load(states + 8);
  __m256i x2 = load(states + 16);
  __m256i x3 = load(states + 24);
  for (std::size_t i = 0; i < n; i += lanes_max) {
    if (end - in < step_bytes) {
      if (in > end) return nullptr;
      if (end == stream_end) {  // Moves the last words once, to have zeros behind them.
        const std::ptrdiff_t left = end - in;
        __builtin_memcpy(last_words, in, static_cast<std::size_t>(left));
        in = last_words;
        end = last_words + left;
      }
    }
    const __m256i place_0 = decode_eight<V>(places, i, x0, in);
    const __m256i place_1 = decode_eight<V>(places, i + 8, x1, in);
    const __m256i place_2 = decode_eight<V>(places, i + 16, x2, in);
    const __m256i place_3 = decode_eight<V>(places, i + 24, x3, in);
    store(symbols + i, V::symbols_of(place_0, place_1, place_2, place_3));
  }
  if (in > end) return nullptr;
  store(states, x0);
  store(states + 8, x1);
  store(states + 16, x2);
  store(states + 24, x3);
  return stream_end - (end - in);
}

template <class V, int steps>
static const std::uint8_t* decode_few(const Place* first_places, const std::uint32_t* begins,
                                      int count, std::uint32_t* states, const std::uint8_t* in,
                                      const std::uint8_t* end, std::uint8_t* symbols,
                                      std::size_t n) {
  std::uint32_t entries[2][8] = {};
  for (int k = 0; k < count; ++k) {
    entries[0][(k + 1 - count) & 7] = first_places[k];
    entries[1][(k + 1 - count) & 7] = begins[k];
  }
  Few<steps> few;
  few.first_places = load(entries[0]);
  few.begins = load(entries[1]);
  for (int k = 0; k < steps; ++k) {  // No place is before a start of 0.
    few.from[k] = _mm256_set1_epi32(k + 1 < count ? static_cast<int>(begins[k + 1]) : 0);
  }
  return decode_with<V>(few, states, in, end, symbols, n);
}

/// Kernels::rans_decode().
template <class V>
static const std::uint8_t* decode(const Place* places, const std::uint8_t* classes,
                                  std::uint32_t* states, const std::uint8_t* in,
                                  const std::uint8_t* end, std::uint8_t* symbols, std::size_t n) {
  if (classes != nullptr) {
    return decode_with<V>(Table<true>{places, classes}, states, in, end, symbols, n);
  }
  Place first_places[few_symbols_max];
  std::uint32_t begins[few_symbols_max];
  int count = 0;
  std::uint32_t begin = 0;
  for (; begin < total && count < few_symbols_max; begin += places[begin] >> 20, ++count) {
    first_places[count] = places[begin];
    begins[count] = begin;
  }
  if (begin < total) {
    return decode_with<V>(Table<false>{places, nullptr}, states, in, end, symbols, n);
  }
  const auto few = count <= 3 ? decode_few<V, 2> : count <= 5 ? decode_few<V, 4> : decode_few<V, 7>;
  return few(first_places, begins, count, states, in, end, symbols, n);
}

}  // namespace fl::rans
