// SPDX-License-Identifier: Apache-2.0
#include "kernels/generic/pack.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace fl {

namespace {

// For codes of 1 or 2 whole bytes. The compiler vectorizes both loops. unpack_whole returns the
// largest code.
template <class Code>
void pack_whole(const std::int16_t* x, std::size_t n, std::int32_t levels, std::uint8_t* out) {
  for (std::size_t i = 0; i < n; ++i) {
    const auto code = static_cast<Code>(x[i] + levels);
    std::memcpy(out + i * sizeof code, &code, sizeof code);
  }
}

template <class Code>
std::uint32_t unpack_whole(const std::uint8_t* packed, std::size_t n, std::int32_t levels,
                           std::int16_t* out) {
  Code largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    Code code;
    std::memcpy(&code, packed + i * sizeof code, sizeof code);
    largest = std::max(largest, code);
    out[i] = static_cast<std::int16_t>(code - levels);
  }
  return largest;
}

// Codes of fewer than 8 bits go through an array with a byte for each. Eight of them are packed or
// unpacked at a time, because eight codes fill `bits` whole bytes.
constexpr std::size_t narrow_at_once = 1024;

/// The lowest `bits` bits of each lane of `lane` bits are ones.
constexpr std::uint64_t lane_mask(int lane, int bits) {
  std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  for (int width = lane; width < 64; width *= 2) mask |= mask << width;
  return mask;
}

/// join() makes one lane of two neighbours. These have `lane` bits, of which the lowest `bits` are
/// in use. part() does the reverse.
template <int lane, int bits>
std::uint64_t join(std::uint64_t x) {
  constexpr std::uint64_t even = lane_mask(2 * lane, lane);
  return (x & even) | (x >> (lane - bits) & (even << bits));
}
template <int lane, int bits>
std::uint64_t part(std::uint64_t x) {
  constexpr std::uint64_t low = lane_mask(2 * lane, bits);
  return (x & low) | ((x & ~low) << (lane - bits));
}

/// Moves eight bytes, each below 2^bits, to the lowest 8 * bits bits.
template <int bits>
std::uint64_t squeeze(std::uint64_t codes) {
  return join<32, 4 * bits>(join<16, 2 * bits>(join<8, bits>(codes)));
}

/// The reverse of squeeze(). Ignores all but the lowest 8 * bits bits.
template <int bits>
std::uint64_t spread(std::uint64_t packed) {
  packed &= (std::uint64_t{1} << (8 * bits)) - 1;
  return part<8, bits>(part<16, 2 * bits>(part<32, 4 * bits>(packed)));
}

std::uint64_t load_eight(const std::uint8_t* from, std::size_t bytes) {
  std::uint64_t eight = 0;
  std::memcpy(&eight, from, bytes);
  return eight;
}

// If a byte holds whole codes, neighbours are joined until it is full. The compiler vectorizes
// these loops, so they are faster than squeeze() and spread() for these widths.
template <int bits>
constexpr bool fills_bytes = 8 % bits == 0;

template <int bits>
void join_neighbours(const std::uint8_t* __restrict codes, std::size_t bytes,
                     std::uint8_t* __restrict out) {
  if constexpr (bits == 4) {
    for (std::size_t i = 0; i < bytes; ++i) {
      out[i] = static_cast<std::uint8_t>(codes[2 * i] | codes[2 * i + 1] << bits);
    }
  } else {
    std::uint8_t joined[narrow_at_once / 2];
    for (std::size_t i = 0; i < bytes * (4 / bits); ++i) {
      joined[i] = static_cast<std::uint8_t>(codes[2 * i] | codes[2 * i + 1] << bits);
    }
    join_neighbours<2 * bits>(joined, bytes, out);
  }
}

template <int bits>
void part_neighbours(const std::uint8_t* __restrict packed, std::size_t bytes,
                     std::uint8_t* __restrict out) {
  std::uint8_t joined[narrow_at_once / 2];
  if constexpr (bits < 4) {
    part_neighbours<2 * bits>(packed, bytes, joined);
    packed = joined;
  }
  for (std::size_t i = 0; i < bytes * (4 / bits); ++i) {
    out[2 * i] = packed[i] & ((1 << bits) - 1);
    out[2 * i + 1] = packed[i] >> bits;
  }
}

/// Requires: zeros follow the codes, up to a multiple of eight.
template <int bits>
void pack_bytes(const std::uint8_t* codes, std::size_t bytes, std::uint8_t* out) {
  if constexpr (fills_bytes<bits>) return join_neighbours<bits>(codes, bytes, out);
  const std::uint8_t* const end = out + bytes;
  for (; end - out >= 8; out += bits, codes += 8) {
    const std::uint64_t eight = squeeze<bits>(load_eight(codes, 8));
    std::memcpy(out, &eight, sizeof eight);  // The next codes overwrite the zeros on top.
  }
  for (; out < end; codes += 8) {
    const std::uint64_t eight = squeeze<bits>(load_eight(codes, 8));
    const auto left = std::min<std::ptrdiff_t>(end - out, bits);
    std::memcpy(out, &eight, static_cast<std::size_t>(left));
    out += left;
  }
}

/// May write more codes, up to a multiple of eight.
template <int bits>
void unpack_bytes(const std::uint8_t* packed, std::size_t bytes, std::uint8_t* codes) {
  if constexpr (fills_bytes<bits>) return part_neighbours<bits>(packed, bytes, codes);
  const std::uint8_t* const end = packed + bytes;
  for (; end - packed >= 8; packed += bits, codes += 8) {
    const std::uint64_t eight = spread<bits>(load_eight(packed, 8));
    std::memcpy(codes, &eight, sizeof eight);
  }
  for (; packed < end; codes += 8) {
    const auto left = std::min<std::ptrdiff_t>(end - packed, bits);
    const std::uint64_t eight = spread<bits>(load_eight(packed, static_cast<std::size_t>(left)));
    std::memcpy(codes, &eight, sizeof eight);
    packed += left;
  }
}

template <int bits>
void pack_narrow(const std::int16_t* x, std::size_t n, std::int32_t levels, std::uint8_t* out) {
  std::uint8_t codes[narrow_at_once];
  for (std::size_t begin = 0; begin < n; begin += narrow_at_once) {
    const std::size_t count = std::min(n - begin, narrow_at_once);
    pack_whole<std::uint8_t>(x + begin, count, levels, codes);
    std::fill(codes + count, codes + (count + 7) / 8 * 8, std::uint8_t{0});
    const std::size_t bytes = (count * bits + 7) / 8;
    pack_bytes<bits>(codes, bytes, out);
    out += bytes;
  }
}

template <int bits>
std::uint32_t unpack_narrow(const std::uint8_t* packed, std::size_t n, std::int32_t levels,
                            std::int16_t* out) {
  std::uint8_t codes[narrow_at_once];
  std::uint32_t largest = 0;
  for (std::size_t begin = 0; begin < n; begin += narrow_at_once) {
    const std::size_t count = std::min(n - begin, narrow_at_once);
    const std::size_t bytes = (count * bits + 7) / 8;
    unpack_bytes<bits>(packed, bytes, codes);
    packed += bytes;
    largest = std::max(largest, unpack_whole<std::uint8_t>(codes, count, levels, out + begin));
  }
  return largest;
}

// Entry i is for i + 1 bits.
constexpr std::array pack_of_bits = {pack_narrow<1>, pack_narrow<2>, pack_narrow<3>, pack_narrow<4>,
                                     pack_narrow<5>, pack_narrow<6>, pack_narrow<7>};
constexpr std::array unpack_of_bits = {unpack_narrow<1>, unpack_narrow<2>, unpack_narrow<3>,
                                       unpack_narrow<4>, unpack_narrow<5>, unpack_narrow<6>,
                                       unpack_narrow<7>};

/// Whether the bits after the last code are zeros.
bool is_filled_right(const std::uint8_t* packed, std::size_t bits) {
  return bits % 8 == 0 || packed[bits / 8] >> bits % 8 == 0;
}

void pack_wide(const std::int16_t* x, std::size_t n, std::int32_t levels, int bits,
               std::uint8_t* out) {
  std::uint64_t pending = 0;
  int filled = 0;
  for (std::size_t i = 0; i < n; ++i) {
    pending |= static_cast<std::uint64_t>(x[i] + levels) << filled;
    filled += bits;
    if (filled >= 32) {
      const auto word = static_cast<std::uint32_t>(pending);
      std::memcpy(out, &word, sizeof word);
      out += sizeof word;
      pending >>= 32;
      filled -= 32;
    }
  }
  for (; filled > 0; filled -= 8, pending >>= 8) *out++ = static_cast<std::uint8_t>(pending);
}

std::uint32_t unpack_wide(const std::uint8_t* packed, std::size_t n, std::int32_t levels, int bits,
                          std::int16_t* out) {
  const std::size_t bytes = packed_bytes(n, levels);
  const std::uint32_t mask = (1u << bits) - 1;
  std::uint32_t largest = 0;
  const auto take = [&](std::size_t i, std::uint32_t word, std::size_t bit) {
    const std::uint32_t code = word >> (bit % 8) & mask;
    largest = std::max(largest, code);
    out[i] = static_cast<std::int16_t>(static_cast<std::int32_t>(code) - levels);
  };
  std::size_t i = 0;
  std::size_t bit = 0;
  for (; i < n && bit / 8 + 4 <= bytes; ++i, bit += bits) {
    std::uint32_t word;
    std::memcpy(&word, packed + bit / 8, sizeof word);
    take(i, word, bit);
  }
  for (; i < n; ++i, bit += bits) {  // Fewer than four bytes are left.
    std::uint32_t word = 0;
    std::memcpy(&word, packed + bit / 8, bytes - bit / 8);
    take(i, word, bit);
  }
  return largest;
}

}  // namespace

int level_bits(std::int32_t levels) {
  return std::bit_width(2 * static_cast<std::uint32_t>(levels));
}

std::size_t packed_bytes(std::size_t n, std::int32_t levels) {
  return (n * static_cast<std::size_t>(level_bits(levels)) + 7) / 8;
}

void pack_levels(const std::int16_t* x, std::size_t n, std::int32_t levels, std::uint8_t* out) {
  const int bits = level_bits(levels);
  if (bits < 8) return pack_of_bits[static_cast<std::size_t>(bits - 1)](x, n, levels, out);
  if (bits == 8) return pack_whole<std::uint8_t>(x, n, levels, out);
  if (bits == 16) return pack_whole<std::uint16_t>(x, n, levels, out);
  pack_wide(x, n, levels, bits, out);
}

bool unpack_levels(const std::uint8_t* packed, std::size_t n, std::int32_t levels,
                   std::int16_t* out) {
  const int bits = level_bits(levels);
  std::uint32_t largest;
  if (bits < 8) {
    largest = unpack_of_bits[static_cast<std::size_t>(bits - 1)](packed, n, levels, out);
  } else if (bits == 8) {
    largest = unpack_whole<std::uint8_t>(packed, n, levels, out);
  } else if (bits == 16) {
    largest = unpack_whole<std::uint16_t>(packed, n, levels, out);
  } else {
    largest = unpack_wide(packed, n, levels, bits, out);
  }
  return is_filled_right(packed, n * static_cast<std::size_t>(bits)) &&
         largest <= 2 * static_cast<std::uint32_t>(levels);
}

std::size_t packed_code_bytes(std::size_t n, int bits) {
  return (n * static_cast<std::size_t>(bits) + 7) / 8;
}

void pack_codes(const std::int16_t* x, std::size_t n, int bits, std::uint8_t* out) {
  pack_of_bits[static_cast<std::size_t>(bits - 1)](x, n, 1 << (bits - 1), out);
}

bool unpack_codes(const std::uint8_t* packed, std::size_t n, int bits, std::int16_t* out) {
  unpack_of_bits[static_cast<std::size_t>(bits - 1)](packed, n, 1 << (bits - 1), out);
  return is_filled_right(packed, n * static_cast<std::size_t>(bits));
}

}  // namespace fl
