// Levels in [-S, S] as bit fields: code = level + S in ceil(log2(2S + 1)) bits, the first level in
// the lowest bits of the first byte, no gaps; the last byte is filled with zeros. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fl {

/// Bits of one code: 2 for S = 1, 8 for S = 127, 16 for S = 32767.
[[nodiscard]] int level_bits(std::int32_t levels);
[[nodiscard]] std::size_t packed_bytes(std::size_t n, std::int32_t levels);

/// Writes packed_bytes(n, levels) bytes. Every |x[i]| <= levels.
void pack_levels(const std::int16_t* x, std::size_t n, std::int32_t levels, std::uint8_t* out);

/// The reverse, from packed_bytes(n, levels) bytes that need not be trusted: false when a code is
/// past 2S or a filling bit is set; `out` then holds numbers without meaning.
[[nodiscard]] bool unpack_levels(const std::uint8_t* packed, std::size_t n, std::int32_t levels,
                                 std::int16_t* out);

/// The same for 2^bits codes that are all in use, 1 to 7 bits each: code = level + 2^(bits - 1),
/// and every x[i] is from -2^(bits - 1) to 2^(bits - 1) - 1.
[[nodiscard]] std::size_t packed_code_bytes(std::size_t n, int bits);
void pack_codes(const std::int16_t* x, std::size_t n, int bits, std::uint8_t* out);
/// False when a filling bit is set.
[[nodiscard]] bool unpack_codes(const std::uint8_t* packed, std::size_t n, int bits,
                                std::int16_t* out);

}  // namespace fl
