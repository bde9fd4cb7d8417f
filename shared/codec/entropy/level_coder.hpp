// SPDX-License-Identifier: Apache-2.0
// Entropy-codes quantized levels from -S to S: a table of their frequencies, then an rANS stream
// (kernels/generic/rans.hpp). Few levels are coded without a table (adaptive_coder.hpp).
//
// The table is a run of bits, lowest first. For each level from -S to S: the bit width of its
// frequency in 4 bits (0: the level does not occur), then the frequency without its highest bit.
// Zeros to a whole byte. Each block has its own table, so blocks can be decoded alone.
//
// Levels can belong to several classes, which the decoder knows from elsewhere. Then there is one
// table per class, one right after the other, and no frequency is 2^12.
#pragma once

#include "kernels/generic/rans.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/codec/core/scratch.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace fl::codec {

/// The largest S that rANS has symbols for. Levels with a larger S are packed in bit fields.
inline constexpr std::int32_t rans_levels_max = 127;
/// Up to this many levels are coded without a table. It is less than a twentieth of a block of
/// part_elements_max. Selectors often send more than that, and with tables coding is five times as
/// fast.
inline constexpr std::size_t adaptive_levels_max = 3072;

/// Classes of levels with different distributions: up to rans_classes_max classes, with at most 256
/// symbols in all.
struct LevelClasses {
  std::span<const std::uint8_t> of = {};  // Each level's class, below `count`; unused if that is 1.
  std::size_t count = 1;
};

/// Returns the frequencies of all classes and writes their tables to `table`. `counts`: how often
/// each of the `alphabet` levels occurs, one class after the other. It is changed: with several
/// classes, at least two levels of each class get a count.
[[nodiscard]] RansFrequencies make_level_tables(std::span<std::uint32_t> counts,
                                                std::size_t alphabet,
                                                std::vector<std::byte>& table);

/// Writes the coded levels to the start of `out` and returns their length. Returns 0 if they would
/// not be shorter than `out`. |level| <= levels <= rans_levels_max.
[[nodiscard]] std::size_t write_rans_levels(std::span<const std::int16_t> x, std::int32_t levels,
                                            LevelScratch& scratch, MutableBytes out,
                                            const LevelClasses& classes = {});

/// Decodes `bytes`, which need not be trusted, into `out`. Returns false unless they are whole
/// tables and one whole stream of out.size() levels, and also if `classes` and `levels` together
/// have too many symbols. 1 <= levels <= rans_levels_max.
[[nodiscard]] bool read_rans_levels(Bytes bytes, std::int32_t levels, LevelScratch& scratch,
                                    std::span<std::int16_t> out, const LevelClasses& classes = {});

}  // namespace fl::codec
