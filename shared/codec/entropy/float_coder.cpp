// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/entropy/float_coder.hpp"

#include "kernels/generic/pack.hpp"
#include "kernels/kernels.hpp"
#include "shared/codec/entropy/level_coder.hpp"
#include "shared/codec/entropy/quantized_levels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace fl::codec {

namespace {

constexpr std::size_t head_bytes = 2;  // Base and top.

/// The sign and mantissa of a number as one integer, and how these integers are stored.
template <FloatFormat format>
struct Rest {
  static constexpr int mantissa_bits = format.bits - 1 - format.exponent_bits;
  static constexpr int bytes = (mantissa_bits + 1) / 8;      // Whole bytes, one plane for each.
  static constexpr int bits_left = (mantissa_bits + 1) % 8;  // The other bits, after the planes.
  static constexpr std::uint32_t mantissa = (1u << mantissa_bits) - 1;
  static constexpr std::uint32_t exponents = (1u << format.exponent_bits) - 1;

  static std::size_t bytes_of(std::size_t n) {
    return std::size_t{bytes} * n + (bits_left > 0 ? packed_code_bytes(n, bits_left) : 0);
  }
  static std::uint32_t of(std::uint32_t word) {
    return (word & mantissa) | word >> (format.bits - 1) << mantissa_bits;
  }
  static std::uint32_t in_word(std::uint32_t rest) {
    return (rest & mantissa) | rest >> mantissa_bits << (format.bits - 1);
  }
};

/// The base: the most frequent exponent, clamped so that all exponents are within 127 of it.
int base_of(const std::array<std::uint32_t, 256>& counts) {
  const auto is_there = [](std::uint32_t count) { return count > 0; };
  const auto largest = std::ranges::find_if(counts.rbegin(), counts.rend(), is_there);
  const auto largest_at = static_cast<int>(counts.rend() - largest) - 1;
  const auto most = static_cast<int>(std::ranges::max_element(counts) - counts.begin());
  return std::clamp(most, std::max(0, largest_at - rans_levels_max), rans_levels_max);
}

}  // namespace

template <FloatFormat format, class Word>
bool append_floats(std::span<const Word> words, EncodeScratch& scratch,
                   std::vector<std::byte>& out) {
  using Of = Rest<format>;
  const std::size_t n = words.size();
  auto& room = scratch.coded.classes;  // It is free: the levels below have no classes.
  room.resize(std::max(room.size(), n));
  // A separate pointer lets the compiler vectorize the loops: a byte stored through the vector
  // might alias the vector's own pointer.
  std::uint8_t* const exponents = room.data();
  for (std::size_t i = 0; i < n; ++i)
    exponents[i] = static_cast<std::uint8_t>(words[i] >> Of::mantissa_bits & Of::exponents);
  std::array<std::uint32_t, 256> counts{};
  kernels().count_symbols(exponents, n, counts.data());
  const int base = base_of(counts);
  int top = 1;
  for (int exponent = 0; exponent < 256; ++exponent) {
    if (counts[static_cast<std::size_t>(exponent)] > 0)
      top = std::max(top, std::abs(exponent - base));
  }
  const auto levels = levels_in(scratch.levels, n);
  for (std::size_t i = 0; i < n; ++i) levels[i] = static_cast<std::int16_t>(exponents[i] - base);
  const std::size_t before = out.size();
  const std::size_t codes_at = before + head_bytes + Of::bytes_of(n);
  if (codes_at >= before + words.size_bytes()) return false;
  out.resize(before + words.size_bytes());
  out[before] = static_cast<std::byte>(base);
  out[before + 1] = static_cast<std::byte>(top);
  const std::size_t coded =
      write_rans_levels(levels, top, scratch.coded, MutableBytes(out).subspan(codes_at));
  if (coded == 0) {
    out.resize(before);
    return false;
  }
  auto* to = reinterpret_cast<std::uint8_t*>(out.data() + before + head_bytes);
  for (int plane = 0; plane < Of::bytes; ++plane, to += n) {
    for (std::size_t i = 0; i < n; ++i)
      to[i] = static_cast<std::uint8_t>(Of::of(words[i]) >> 8 * plane);
  }
  if constexpr (Of::bits_left > 0) {
    constexpr int half = 1 << (Of::bits_left - 1);
    for (std::size_t i = 0; i < n; ++i)
      levels[i] = static_cast<std::int16_t>((Of::of(words[i]) >> 8 * Of::bytes) - half);
    pack_codes(levels.data(), n, Of::bits_left, to);
  }
  out.resize(codes_at + coded);
  return true;
}

template <FloatFormat format, class Word>
Result<void> read_floats(Bytes bytes, std::span<Word> out, DecodeScratch& scratch) {
  using Of = Rest<format>;
  const std::size_t n = out.size();
  if (bytes.size() < head_bytes + Of::bytes_of(n))
    return Error(Errc::corrupt, "the signs and mantissas are cut off");
  const int base = load<std::uint8_t>(bytes, 0);
  const int top = load<std::uint8_t>(bytes, 1);
  if (top < 1 || top > rans_levels_max)
    return Error(Errc::corrupt, fmt::format("exponents up to {} from the base", top));
  const auto levels = levels_in(scratch.levels, n);
  if (!read_rans_levels(bytes.subspan(head_bytes + Of::bytes_of(n)), top, scratch.coded, levels))
    return Error(Errc::corrupt, "the exponents are damaged");
  std::int16_t least = 0;
  std::int16_t most = 0;
  for (const std::int16_t level : levels) {
    least = std::min(least, level);
    most = std::max(most, level);
  }
  if (base + least < 0 || base + most > static_cast<int>(Of::exponents))
    return Error(Errc::corrupt, fmt::format("exponents from {} to {}, which the format can't hold",
                                            base + least, base + most));
  const auto* from = reinterpret_cast<const std::uint8_t*>(bytes.data() + head_bytes);
  for (std::size_t i = 0; i < n; ++i) {
    std::uint32_t rest = 0;
    for (int plane = 0; plane < Of::bytes; ++plane)
      rest |= std::uint32_t{from[static_cast<std::size_t>(plane) * n + i]} << 8 * plane;
    const auto exponent = static_cast<std::uint32_t>(levels[i] + base);
    out[i] = static_cast<Word>(exponent << Of::mantissa_bits | Of::in_word(rest));
  }
  if constexpr (Of::bits_left > 0) {
    if (!unpack_codes(from + std::size_t{Of::bytes} * n, n, Of::bits_left, levels.data()))
      return Error(Errc::corrupt, "bits are set behind the last mantissa");
    constexpr int half = 1 << (Of::bits_left - 1);
    for (std::size_t i = 0; i < n; ++i) {
      const auto rest = static_cast<std::uint32_t>(levels[i] + half) << 8 * Of::bytes;
      out[i] = static_cast<Word>(out[i] | Of::in_word(rest));
    }
  }
  return {};
}

template bool append_floats<fp32_words>(std::span<const std::uint32_t>, EncodeScratch&,
                                        std::vector<std::byte>&);
template bool append_floats<fp16_words>(std::span<const std::uint16_t>, EncodeScratch&,
                                        std::vector<std::byte>&);
template bool append_floats<bf16_words>(std::span<const std::uint16_t>, EncodeScratch&,
                                        std::vector<std::byte>&);
template Result<void> read_floats<fp32_words>(Bytes, std::span<std::uint32_t>, DecodeScratch&);
template Result<void> read_floats<fp16_words>(Bytes, std::span<std::uint16_t>, DecodeScratch&);
template Result<void> read_floats<bf16_words>(Bytes, std::span<std::uint16_t>, DecodeScratch&);

}  // namespace fl::codec
