// Which elements of a block are selected, near log2 C(n, k) bits. The encoder takes the shortest of
// three forms; a u16 tells which:
//
//   0          a bitmap, element i in bit i % 8 of byte i / 8, zeros to a whole byte
//   0xffff     u16 bytes, then the bitmap's nibbles, lower half of a byte first, as levels
//              nibble - 8 of an entropy code (level_coder.hpp)
//   m, others  a Golomb code of the gaps with divisor m (Golomb 1966, "Run-length encodings"): for
//              each index, with g elements left out since the one before, g / m in ones and a zero,
//              then g % m in truncated binary, its lowest bit last; zeros to a whole byte
//
// Golomb codes are near the entropy where few are selected, and the bitmap's nibbles where many.
#pragma once

#include "shared/base/io/bytes.hpp"
#include "shared/codec/core/scratch.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace fl {

/// No indices below n take more bytes.
[[nodiscard]] constexpr std::size_t index_bytes_max(std::size_t n) {
  return sizeof(std::uint16_t) + (n + 7) / 8;
}

/// Indices ascend strictly, below n; at least one. n <= block_elements_max.
void append_indices(std::span<const std::uint32_t> indices, std::size_t n, EncodeScratch& scratch,
                    std::vector<std::byte>& out);

/// Fills `out` with indices that ascend strictly, below n, from the begin of bytes that need not be
/// trusted; returns how many bytes they took, or nothing if that many indices are not there.
[[nodiscard]] std::optional<std::size_t> read_indices(Bytes bytes, std::size_t n,
                                                      DecodeScratch& scratch,
                                                      std::span<std::uint32_t> out);

}  // namespace fl
