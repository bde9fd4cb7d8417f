// Quantized levels near their entropy: a table of frequencies, then an rANS stream
// (kernels/rans.hpp).
//
// The table, in bits, lowest first: for each level from -S to S the bit width of its frequency in 4
// bits (0: the level does not occur), then the frequency without its highest bit; zeros to a whole
// byte. A block of its own statistics has a table of its own, so blocks still decode alone.
#pragma once

#include "shared/base/bytes.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace fl {

/// More levels than rANS has symbols for are always packed in bit fields.
inline constexpr std::int32_t rans_levels_max = 127;

/// Appends table and stream to `out` and returns true, if together they take less than `bytes_max`
/// bytes; else leaves it as it is. |level| <= levels <= rans_levels_max.
[[nodiscard]] bool append_rans_levels(std::span<const std::int16_t> x, std::int32_t levels,
                                      std::size_t bytes_max, std::vector<std::byte>& out);

/// Fills `out` from bytes that need not be trusted; false unless they are one whole table and
/// stream of this many levels. 1 <= levels <= rans_levels_max. `scratch` is resized.
[[nodiscard]] bool read_rans_levels(Bytes bytes, std::int32_t levels,
                                    std::vector<std::uint8_t>& scratch,
                                    std::span<std::int16_t> out);

}  // namespace fl
