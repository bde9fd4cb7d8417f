// Floating-point numbers near their entropy: of those of an update the exponents are much alike,
// and all else is not. As DietGPU (Johnson 2022) and ZipNN (Hershcovitch 2024, "ZipNN: lossless
// compression for AI models", section 3) do it. The bytes:
//
//   u8 base, u8 top; of each number the sign above its mantissa: all lowest bytes, then the next
//   ones, then what bits are left (kernels/generic/pack.hpp); to the end the exponents less `base`,
//   levels up to `top` (level_coder.hpp)
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/codec/core/scratch.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace fl {

/// One bit is the sign, above the exponent's. Words are of 16 or of 32 bits.
struct FloatFormat {
  int bits;
  int exponent_bits;
};

inline constexpr FloatFormat fp32_words{.bits = 32, .exponent_bits = 8};
inline constexpr FloatFormat bf16_words{.bits = 16, .exponent_bits = 8};
inline constexpr FloatFormat fp16_words{.bits = 16, .exponent_bits = 5};

/// Appends the numbers, if that is shorter than they are. False: `out` is as it was.
template <FloatFormat format, class Word>
[[nodiscard]] bool append_floats(std::span<const Word> words, EncodeScratch& scratch,
                                 std::vector<std::byte>& out);

/// Fills `out` from bytes that need not be trusted; the numbers may be not finite. Errors are
/// corrupt.
template <FloatFormat format, class Word>
[[nodiscard]] Result<void> read_floats(Bytes bytes, std::span<Word> out, DecodeScratch& scratch);

}  // namespace fl
