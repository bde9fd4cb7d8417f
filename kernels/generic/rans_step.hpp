// SPDX-License-Identifier: Apache-2.0
// One step of one lane of rANS (rans.hpp), written once for all rows and for CUDA, where the 32
// threads of a warp are the lanes.
//
// Pure; any thread. The functions have internal linkage on purpose; see philox.hpp.
#pragma once

#include "kernels/generic/philox.hpp"

#include <cstddef>
#include <cstdint>

namespace fl::rans {

inline constexpr int bits = 12;  // Frequencies add up to 2^12.
inline constexpr std::uint32_t total = 1u << bits;
inline constexpr std::size_t lanes_max = 32;
inline constexpr std::size_t lanes_few = 4;
// A state is in [2^15, 2^31). One word more or less is always enough to keep it there, and it can
// be compared as a signed number, which is all that AVX2 can do.
inline constexpr std::uint32_t state_min = 1u << 15;
inline constexpr std::uint32_t state_end = 1u << 31;

/// The constants for encoding a symbol. `inverse` is 2^(32 + shift) / frequency, rounded up. So a
/// multiplication and a shift divide numbers below 2^31 exactly by the frequency (Granlund and
/// Montgomery 1994, theorem 4.2).
struct alignas(16) Code {
  std::uint32_t inverse;
  std::uint32_t shift;
  std::uint32_t rest;  // 2^12 - frequency.
  std::uint32_t bias;
};

/// Requires: 0 < frequency < 2^12. `begin` is the sum of the frequencies of the symbols before.
FL_HOST_DEVICE static inline Code make_code(std::uint32_t frequency, std::uint32_t begin) {
  // The inverse would be 2^32, which does not fit. With 2^32 - 1 the quotient is 1 too small, and
  // the bias makes up for it.
  if (frequency == 1) return {~0u, 0, total - 1, begin + total - 1};
  std::uint32_t shift = 0;
  while (2u << shift < frequency) ++shift;
  const std::uint64_t inverse = ((std::uint64_t{1} << (32 + shift)) + frequency - 1) / frequency;
  return {static_cast<std::uint32_t>(inverse), shift, total - frequency, begin};
}

/// Whether the low 16 bits of x must be written and shifted out before push(). Without that a state
/// of frequency * 2^19 or more would leave its range.
FL_HOST_DEVICE static inline bool is_full(std::uint32_t x, const Code& code) {
  return (x + (code.rest << (31 - bits))) >= state_end;
}

/// The next state, x / frequency * 2^12 + begin + x % frequency.
FL_HOST_DEVICE static inline std::uint32_t push(std::uint32_t x, const Code& code) {
  const auto high = static_cast<std::uint32_t>((std::uint64_t{code.inverse} * x) >> 32);
  return x + code.bias + (high >> code.shift) * code.rest;
}

/// The data for decoding a value of a state's low 12 bits. From the lowest bit: the symbol in 8
/// bits, the offset in the symbol's range in 12 bits, and the symbol's frequency in 12 bits.
using Place = std::uint32_t;

FL_HOST_DEVICE static inline Place make_place(std::uint32_t symbol, std::uint32_t offset,
                                              std::uint32_t frequency) {
  return symbol | offset << 8 | frequency << 20;
}

/// The reverse of push(). `place` is that of x. If the result is below state_min, a word must be
/// read.
FL_HOST_DEVICE static inline std::uint32_t pop(std::uint32_t x, Place place) {
  return (place >> 20) * (x >> bits) + (place >> 8 & (total - 1));
}

}  // namespace fl::rans
