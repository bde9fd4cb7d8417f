// SPDX-License-Identifier: Apache-2.0
// Lossless coding of floating-point numbers near their entropy. In an update the exponents are much
// alike and can be compressed; signs and mantissas can't. DietGPU (Johnson 2022) and ZipNN
// (Hershcovitch 2024, "ZipNN: lossless compression for AI models", section 3) do the same. The
// bytes:
//
//   u8 base, u8 top
//   the sign and mantissa of each number, as an integer with the sign as its highest bit: first the
//       lowest bytes of all numbers, then their next bytes, then the bits that are left
//       (kernels/generic/pack.hpp)
//   to the end the exponents minus `base`, as levels from -top to top (level_coder.hpp)
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/codec/core/scratch.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace fl::codec {

/// A format of 16 or 32 bits: the sign bit, the exponent, then the mantissa, from the highest bit.
struct FloatFormat {
  int bits;
  int exponent_bits;
};

inline constexpr FloatFormat fp32_words{.bits = 32, .exponent_bits = 8};
inline constexpr FloatFormat bf16_words{.bits = 16, .exponent_bits = 8};
inline constexpr FloatFormat fp16_words{.bits = 16, .exponent_bits = 5};

/// Appends the coded numbers if that is shorter than the numbers themselves. Otherwise returns
/// false and leaves `out` unchanged.
template <FloatFormat format, class Word>
[[nodiscard]] bool append_floats(std::span<const Word> words, EncodeScratch& scratch,
                                 std::vector<std::byte>& out);

/// Decodes `bytes`, which need not be trusted, into `out`. The numbers may be infinite or NaN.
/// Errors are corrupt.
template <FloatFormat format, class Word>
[[nodiscard]] Result<void> read_floats(Bytes bytes, std::span<Word> out, DecodeScratch& scratch);

}  // namespace fl::codec
