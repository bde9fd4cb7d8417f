// SPDX-License-Identifier: Apache-2.0
// Levels in [-S, S] as bit fields. A level's code is level + S, in ceil(log2(2S + 1)) bits. The
// first code is in the lowest bits of the first byte. There are no gaps, and the last byte is
// filled with zeros. `levels` is S, 1 to 32767. Pure; any thread. Input and output must not
// overlap.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fl {

/// The bits of one code: 2 for S = 1, 8 for S = 127, 16 for S = 32767.
[[nodiscard]] int level_bits(std::int32_t levels);
[[nodiscard]] std::size_t packed_bytes(std::size_t n, std::int32_t levels);

/// Writes packed_bytes(n, levels) bytes. Requires: |x[i]| <= levels for every i.
void pack_levels(const std::int16_t* x, std::size_t n, std::int32_t levels, std::uint8_t* out);

/// Reads packed_bytes(n, levels) bytes, which may come from anyone, back into levels. Returns false
/// if a code is above 2S or a filling bit is set; then `out` has no meaning.
[[nodiscard]] bool unpack_levels(const std::uint8_t* packed, std::size_t n, std::int32_t levels,
                                 std::int16_t* out);

/// Packs codes of 1 to 7 bits that all have a level: code = level + 2^(bits - 1). Requires:
/// -2^(bits - 1) <= x[i] < 2^(bits - 1).
[[nodiscard]] std::size_t packed_code_bytes(std::size_t n, int bits);
void pack_codes(const std::int16_t* x, std::size_t n, int bits, std::uint8_t* out);
/// Reads them back. Returns false if a filling bit is set; then `out` has no meaning.
[[nodiscard]] bool unpack_codes(const std::uint8_t* packed, std::size_t n, int bits,
                                std::int16_t* out);

}  // namespace fl
