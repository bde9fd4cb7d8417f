// SPDX-License-Identifier: Apache-2.0
// Bit fields of levels: packing and unpacking gives the levels again for every width, and unpacking
// rejects bytes that packing cannot make.
#include "kernels/generic/pack.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

using namespace fl;

TEST_CASE("levels of every width and length are packed and unpacked") {
  for (std::int32_t levels = 1; levels <= 32767;
       levels = levels < 300 ? levels + 1 : levels * 2 + 1) {
    CHECK(level_bits(levels) == static_cast<int>(std::ceil(std::log2(2.0 * levels + 1))));
    for (const std::size_t n : {0u, 1u, 2u, 3u, 7u, 8u, 9u, 31u, 32u, 33u, 1025u, 2051u}) {
      std::vector<std::int16_t> x(n);
      for (std::size_t i = 0; i < n; ++i) {
        x[i] = static_cast<std::int16_t>(static_cast<std::int32_t>(i * 40503 % (2u * levels + 1)) -
                                         levels);
      }
      std::vector<std::uint8_t> packed(packed_bytes(n, levels));  // Exact size, for ASan.
      pack_levels(x.data(), n, levels, packed.data());
      std::vector<std::int16_t> back(n);
      CHECK(unpack_levels(packed.data(), n, levels, back.data()));
      CHECK(back == x);
    }
  }
}

TEST_CASE("codes of 1 to 7 bits are packed and unpacked, and filling bits are rejected") {
  for (int bits = 1; bits <= 7; ++bits) {
    for (const std::size_t n : {0u, 1u, 7u, 8u, 9u, 63u, 64u, 65u, 1025u, 2051u}) {
      CAPTURE(bits);
      CAPTURE(n);
      std::vector<std::int16_t> x(n);
      for (std::size_t i = 0; i < n; ++i) {
        const auto code = static_cast<std::int32_t>(i * 40503 % (1u << bits));
        x[i] = static_cast<std::int16_t>(code - (1 << (bits - 1)));
      }
      std::vector<std::uint8_t> packed(packed_code_bytes(n, bits));
      pack_codes(x.data(), n, bits, packed.data());
      std::vector<std::int16_t> back(n);
      CHECK(unpack_codes(packed.data(), n, bits, back.data()));
      CHECK(back == x);
      if (n * static_cast<std::size_t>(bits) % 8 == 0) continue;
      packed.back() |= 0x80;
      CHECK_FALSE(unpack_codes(packed.data(), n, bits, back.data()));
    }
  }
  const std::vector<std::int16_t> signs = {0, -1, -1, 0, 0, 0, 0, 0, -1};
  std::uint8_t packed[2];
  pack_codes(signs.data(), signs.size(), 1, packed);
  CHECK(packed[0] == 0b11111001);
  CHECK(packed[1] == 0);
}

TEST_CASE("the layout of the bits is fixed") {
  const std::vector<std::int16_t> x = {-1, 0, 1, -1, 1};  // Codes 0 1 2 0 2 in two bits each.
  std::uint8_t packed[2];
  pack_levels(x.data(), x.size(), 1, packed);
  CHECK(packed[0] == 0b00'10'01'00);
  CHECK(packed[1] == 0b10);
}

TEST_CASE("codes above 2S and filling bits that are set are rejected") {
  std::int16_t out[4];
  const std::uint8_t past[] = {0b11};
  CHECK_FALSE(unpack_levels(past, 1, 1, out));
  const std::uint8_t filling[] = {0b01'00'00};
  CHECK_FALSE(unpack_levels(filling, 2, 1, out));
  const std::uint8_t past_byte[] = {255};
  CHECK_FALSE(unpack_levels(past_byte, 1, 127, out));
  const std::uint8_t past_word[] = {255, 255};
  CHECK_FALSE(unpack_levels(past_word, 1, 32767, out));
  const std::uint8_t right[] = {254};
  CHECK(unpack_levels(right, 1, 127, out));
  CHECK(out[0] == 127);
}
