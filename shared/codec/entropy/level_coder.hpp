// Quantized levels near their entropy: a table of frequencies, then an rANS stream
// (kernels/generic/rans.hpp); few of them without a table (adaptive_coder.hpp).
//
// The table, in bits, lowest first: for each level from -S to S the bit width of its frequency in 4
// bits (0: the level does not occur), then the frequency without its highest bit; zeros to a whole
// byte. A block of its own statistics has a table of its own, so blocks still decode alone.
//
// Levels can be of several classes, which the decoder knows without being told. Then there is a
// table for each class, one right after the other, in which no frequency is 2^12.
#pragma once

#include "kernels/generic/rans.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/codec/core/scratch.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace fl {

/// More levels than rANS has symbols for are always packed in bit fields.
inline constexpr std::int32_t rans_levels_max = 127;
/// Up to so many have no table. Of a block of part_elements_max these are less than a twentieth,
/// which selectors often send and tables suit: they are five times as fast.
inline constexpr std::size_t adaptive_levels_max = 3072;

/// Levels that are distributed differently: up to rans_classes_max, with 256 symbols together.
struct LevelClasses {
  std::span<const std::uint8_t> of = {};  // Of each level, below `count`. Not read where that is 1.
  std::size_t count = 1;
};

/// The frequencies of the levels of each class, and in `table` their tables. counts: how often each
/// of the class's `alphabet` levels occurs, one class after the other; made what the frequencies
/// are of.
[[nodiscard]] RansFrequencies make_level_tables(std::span<std::uint32_t> counts,
                                                std::size_t alphabet,
                                                std::vector<std::byte>& table);

/// Writes tables and stream to the begin of `out` and returns their bytes, if together they are
/// shorter than it; else returns 0. |level| <= levels <= rans_levels_max.
[[nodiscard]] std::size_t write_rans_levels(std::span<const std::int16_t> x, std::int32_t levels,
                                            LevelScratch& scratch, MutableBytes out,
                                            const LevelClasses& classes = {});

/// Fills `out` from bytes that need not be trusted; false unless they are whole tables and one
/// whole stream of this many levels; `classes` may be too many for the levels. 1 <= levels <=
/// rans_levels_max.
[[nodiscard]] bool read_rans_levels(Bytes bytes, std::int32_t levels, LevelScratch& scratch,
                                    std::span<std::int16_t> out, const LevelClasses& classes = {});

}  // namespace fl
