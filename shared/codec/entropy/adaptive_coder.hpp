// Few quantized levels near their entropy: no table of frequencies, which would be a part of their
// bytes worth mentioning. Encoder and decoder count instead, level by level, what came before.
//
// A level is told by answers of yes and no: whether it is not 0; whether it is negative; then
// whether its size is at least 2, 4, 8 and so on, up to S, until it isn't; and then by halves which
// of the sizes a to b - 1 that are left it is: whether at least a + (b - a) / 2, rounded down. Each
// question has counts of its own for each class, and those about sizes are the same of both signs,
// but for whether it is at least 2. The probability of yes is that of Krichevsky and Trofimov
// (1981, "The performance of universal encoding"): of n answers, y of them yes, (y + 1/2) / (n +
// 1), in 2^-16, rounded down. Sizes that don't occur cost nothing.
//
// The answers are coded by binary rANS (Duda 2013, arXiv:1311.2540) of one state in [2^16, 2^32):
// its low 16 bits are a no where they are below 2^16 less the probability of yes. The bytes are the
// first state, u32, then u16 words in the order in which decoding takes them, little-endian; the
// state ends at 2^16.
#pragma once

#include "shared/base/io/bytes.hpp"
#include "shared/codec/entropy/level_coder.hpp"

#include <cstdint>
#include <span>

namespace fl {

/// Writes the bytes to the begin of `out` and returns how many, if they are fewer than it has; else
/// returns 0. |level| <= levels <= rans_levels_max; 1 to adaptive_levels_max of them.
[[nodiscard]] std::size_t write_adaptive_levels(std::span<const std::int16_t> x,
                                                std::int32_t levels, LevelScratch& scratch,
                                                MutableBytes out, const LevelClasses& classes);

/// Fills `out` from bytes that need not be trusted; false unless they are what
/// write_adaptive_levels() makes of so many levels, to the last byte. 1 <= levels <=
/// rans_levels_max; 1 to adaptive_levels_max of them, in rans_classes_max classes at most.
[[nodiscard]] bool read_adaptive_levels(Bytes bytes, std::int32_t levels,
                                        std::span<std::int16_t> out, const LevelClasses& classes);

}  // namespace fl
