// SPDX-License-Identifier: Apache-2.0
// Codes which k of a block's n elements are selected, in about log2 C(n, k) bits. There are three
// forms; the encoder takes the shortest that it tries. A u16 says which form follows:
//
//   0          a bitmap: element i is bit i % 8 of byte i / 8, zeros to a whole byte
//   0xffff     u16 length in bytes, then the bitmap's nibbles, the lower half of a byte first, as
//              entropy-coded levels nibble - 8 (level_coder.hpp)
//   m, others  a Golomb code of the gaps with divisor m (Golomb 1966, "Run-length encodings"). For
//              each index with a gap of g elements since the index before: g / m ones and a zero,
//              then g % m in truncated binary, its lowest bit last. Zeros to a whole byte
//
// Golomb codes are near the entropy if few elements are selected; coded nibbles if many are.
#pragma once

#include "shared/base/io/bytes.hpp"
#include "shared/codec/core/scratch.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace fl::codec {

/// The most bytes that indices below n take.
[[nodiscard]] constexpr std::size_t index_bytes_max(std::size_t n) {
  return sizeof(std::uint16_t) + (n + 7) / 8;
}

/// Appends the coded indices to `out`. They ascend strictly and are below n; there is at least one.
/// n <= block_elements_max.
void append_indices(std::span<const std::uint32_t> indices, std::size_t n, EncodeScratch& scratch,
                    std::vector<std::byte>& out);

/// Decodes out.size() indices from the start of `bytes`, which need not be trusted. The indices
/// ascend strictly and are below n. Returns how many bytes they took; nullopt if the bytes are
/// damaged.
[[nodiscard]] std::optional<std::size_t> read_indices(Bytes bytes, std::size_t n,
                                                      DecodeScratch& scratch,
                                                      std::span<std::uint32_t> out);

}  // namespace fl::codec
