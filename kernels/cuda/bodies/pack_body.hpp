// SPDX-License-Identifier: Apache-2.0
// The bodies of the kernels for bit fields (cuda_pack.hpp). A thread packs or unpacks eight codes
// at a time, because eight codes of b bits fill b whole bytes.
#pragma once

#include "kernels/cuda/bodies/block.hpp"
#include "kernels/generic/pack.hpp"

#include <cstddef>
#include <cstdint>

namespace fl::cuda {

/// How codes are made: a code is level + offset, in `bits` bits (1 to 16), and at most `most`.
struct Fields {
  int bits;
  std::int32_t offset;
  std::uint32_t most;
};

/// The fields of pack_levels() and of pack_codes().
inline Fields fields_of_levels(std::int32_t levels) {
  return {level_bits(levels), levels, 2 * static_cast<std::uint32_t>(levels)};
}
inline Fields fields_of_codes(int bits) { return {bits, 1 << (bits - 1), (1u << bits) - 1}; }

/// How many of the eight codes from `begin` on there are.
FL_DEVICE inline std::size_t codes_from(std::size_t begin, std::size_t n) {
  return n - begin < 8 ? n - begin : 8;
}

template <class Block>
FL_DEVICE inline void pack_fields(const Block& block, const std::int16_t* x, std::size_t n,
                                  const Fields& fields, std::uint8_t* out) {
  block.each([&](unsigned thread) {
    for_each_index(block, thread, (n + 7) / 8, [&](std::size_t eight) {
      std::uint8_t* at = out + eight * static_cast<std::size_t>(fields.bits);
      std::uint32_t pending = 0;
      int filled = 0;
      const std::size_t count = codes_from(eight * 8, n);
      for (std::size_t i = 0; i < count; ++i) {
        pending |= static_cast<std::uint32_t>(x[eight * 8 + i] + fields.offset) << filled;
        for (filled += fields.bits; filled >= 8; filled -= 8, pending >>= 8) {
          *at++ = static_cast<std::uint8_t>(pending);
        }
      }
      if (filled > 0) *at = static_cast<std::uint8_t>(pending);
    });
  });
}

/// Raises `is_bad` to 1 if a code is above `most` or a filling bit is set.
template <class Block>
FL_DEVICE inline void unpack_fields(const Block& block, const std::uint8_t* packed, std::size_t n,
                                    const Fields& fields, std::int16_t* out,
                                    std::uint32_t* is_bad) {
  const std::uint32_t mask = (1u << fields.bits) - 1;
  block.each([&](unsigned thread) {
    std::uint32_t largest = 0;
    std::uint32_t filling = 0;
    for_each_index(block, thread, (n + 7) / 8, [&](std::size_t eight) {
      const std::uint8_t* at = packed + eight * static_cast<std::size_t>(fields.bits);
      std::uint32_t pending = 0;
      int filled = 0;
      const std::size_t count = codes_from(eight * 8, n);
      for (std::size_t i = 0; i < count; ++i) {
        for (; filled < fields.bits; filled += 8) {
          pending |= static_cast<std::uint32_t>(*at++) << filled;
        }
        const std::uint32_t code = pending & mask;
        pending >>= fields.bits;
        filled -= fields.bits;
        largest = code > largest ? code : largest;
        out[eight * 8 + i] =
            static_cast<std::int16_t>(static_cast<std::int32_t>(code) - fields.offset);
      }
      filling |= pending;
    });
    if (largest > fields.most || filling != 0) Block::raise(is_bad, 1);
  });
}

}  // namespace fl::cuda
