// SPDX-License-Identifier: Apache-2.0
// An adaptive entropy coder for blocks with few quantized levels. A table of frequencies would be a
// large part of their bytes, so encoder and decoder count the earlier levels instead.
//
// A level is coded as the answers to yes/no questions:
// 1. Is it not 0?
// 2. Is it negative?
// 3. Is its size at least 2, at least 4, at least 8 and so on up to S, until the answer is no?
// 4. By bisection, while sizes a to b - 1 are left: is the size at least a + (b - a) / 2 (rounded
//    down)?
// Each question has its own counts in each class. Questions about sizes share their counts between
// the two signs, except "at least 2". The probability of yes is the estimate of Krichevsky and
// Trofimov (1981, "The performance of universal encoding"): (y + 1/2) / (n + 1) after n answers, y
// of them yes; in units of 2^-16, rounded down. Sizes that don't occur cost nothing.
//
// The answers are coded by binary rANS (Duda 2013, arXiv:1311.2540) with one state in [2^16, 2^32).
// The low 16 bits of the state mean no if they are below 2^16 minus the probability of yes. The
// bytes are the first state as u32, then u16 words in the order in which the decoder takes them,
// little-endian. The last state is 2^16.
#pragma once

#include "shared/base/io/bytes.hpp"
#include "shared/codec/entropy/level_coder.hpp"

#include <cstdint>
#include <span>

namespace fl::codec {

/// Writes the coded levels to the start of `out` and returns their length. Returns 0 if they would
/// not be shorter than `out`. `x` has 1 to adaptive_levels_max levels; |level| <= levels <=
/// rans_levels_max.
[[nodiscard]] std::size_t write_adaptive_levels(std::span<const std::int16_t> x,
                                                std::int32_t levels, LevelScratch& scratch,
                                                MutableBytes out, const LevelClasses& classes);

/// Decodes `bytes`, which need not be trusted, into `out`. Returns false unless they are exactly
/// what write_adaptive_levels() makes of out.size() levels. 1 <= levels <= rans_levels_max; `out`
/// has 1 to adaptive_levels_max levels, in at most rans_classes_max classes.
[[nodiscard]] bool read_adaptive_levels(Bytes bytes, std::int32_t levels,
                                        std::span<std::int16_t> out, const LevelClasses& classes);

}  // namespace fl::codec
