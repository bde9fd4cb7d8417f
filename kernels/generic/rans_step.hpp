// One step of one lane of rANS (rans.hpp), written once for all rows, and for a warp whose threads
// are the 32 lanes.
//
// Internal linkage on purpose; see philox.hpp.
#pragma once

#include "kernels/generic/philox.hpp"

#include <cstddef>
#include <cstdint>

namespace fl::rans {

inline constexpr int bits = 12;  // Frequencies add up to 2^12.
inline constexpr std::uint32_t total = 1u << bits;
inline constexpr std::size_t lanes_max = 32;
inline constexpr std::size_t lanes_few = 4;
// A state lies in [2^15, 2^31): one word more or less is always enough to keep it there, and signed
// comparisons, which SIMD has, are right.
inline constexpr std::uint32_t state_min = 1u << 15;
inline constexpr std::uint32_t state_end = 1u << 31;

/// What encoding a symbol takes. With `inverse` = 2^(32 + shift) / frequency, rounded up, a
/// multiplication divides numbers below 2^31 exactly (Granlund and Montgomery 1994, theorem 4.2).
struct alignas(16) Code {
  std::uint32_t inverse;
  std::uint32_t shift;
  std::uint32_t rest;  // 2^12 - frequency.
  std::uint32_t bias;
};

/// 0 < frequency < 2^12; begin is the sum of the frequencies of the symbols before.
FL_HOST_DEVICE static inline Code make_code(std::uint32_t frequency, std::uint32_t begin) {
  // The inverse would be 2^32. This one makes quotients that are short by 1, and so does the bias.
  if (frequency == 1) return {~0u, 0, total - 1, begin + total - 1};
  std::uint32_t shift = 0;
  while (2u << shift < frequency) ++shift;
  const std::uint64_t inverse = ((std::uint64_t{1} << (32 + shift)) + frequency - 1) / frequency;
  return {static_cast<std::uint32_t>(inverse), shift, total - frequency, begin};
}

/// Whether the low 16 bits of x must be written first, and x be shifted by them: x is at least
/// frequency * 2^19, and would leave its range.
FL_HOST_DEVICE static inline bool is_full(std::uint32_t x, const Code& code) {
  return (x + (code.rest << (31 - bits))) >= state_end;
}

/// x / frequency * 2^12 + begin + x % frequency.
FL_HOST_DEVICE static inline std::uint32_t push(std::uint32_t x, const Code& code) {
  const auto high = static_cast<std::uint32_t>((std::uint64_t{code.inverse} * x) >> 32);
  return x + code.bias + (high >> code.shift) * code.rest;
}

/// One of the 2^12 places that a state's low bits can be: the symbol in 8 bits, how far into its
/// range the place is in 12, and its frequency in 12.
using Place = std::uint32_t;

FL_HOST_DEVICE static inline Place make_place(std::uint32_t symbol, std::uint32_t offset,
                                              std::uint32_t frequency) {
  return symbol | offset << 8 | frequency << 20;
}

/// The reverse of push; `place` is that of x. Below state_min a word must come in.
FL_HOST_DEVICE static inline std::uint32_t pop(std::uint32_t x, Place place) {
  return (place >> 20) * (x >> bits) + (place >> 8 & (total - 1));
}

}  // namespace fl::rans
