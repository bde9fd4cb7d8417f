#include "kernels/pack.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace fl {

namespace {

// Codes that are whole bytes; the compiler makes SIMD of these two loops. unpack returns the
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

void pack_bits(const std::int16_t* x, std::size_t n, std::int32_t levels, int bits,
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

std::uint32_t unpack_bits(const std::uint8_t* packed, std::size_t n, std::int32_t levels, int bits,
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
  for (; i < n; ++i, bit += bits) {  // Fewer than four bytes are left to load.
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
  if (bits == 8) return pack_whole<std::uint8_t>(x, n, levels, out);
  if (bits == 16) return pack_whole<std::uint16_t>(x, n, levels, out);
  pack_bits(x, n, levels, bits, out);
}

bool unpack_levels(const std::uint8_t* packed, std::size_t n, std::int32_t levels,
                   std::int16_t* out) {
  const int bits = level_bits(levels);
  std::uint32_t largest;
  if (bits == 8) {
    largest = unpack_whole<std::uint8_t>(packed, n, levels, out);
  } else if (bits == 16) {
    largest = unpack_whole<std::uint16_t>(packed, n, levels, out);
  } else {
    largest = unpack_bits(packed, n, levels, bits, out);
  }
  const std::size_t used = n * static_cast<std::size_t>(bits) % 8;  // Bits of the last byte.
  const bool filled_right = used == 0 || packed[packed_bytes(n, levels) - 1] >> used == 0;
  return filled_right && largest <= 2 * static_cast<std::uint32_t>(levels);
}

}  // namespace fl
