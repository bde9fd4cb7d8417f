// SPDX-License-Identifier: Apache-2.0
// What the compressors with quantized levels (qsgd, kbit, terngrad) have in common. Runs of values
// share a scale. A block has its scales first, then its levels to the block's end: either
// entropy-coded (level_coder.hpp) or as bit fields (kernels/generic/pack.hpp). The block format
// says which.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/codec/core/block_map.hpp"
#include "shared/codec/core/scratch.hpp"
#include "shared/codec/entropy/level_coder.hpp"

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace fl::codec {

/// Both ends refuse larger scales, because S * (scale / S) must not round to infinity.
inline constexpr float scale_max = 0x1p127f;

/// Returns invalid_input if the scale of the values from element `flat` on is above scale_max.
[[nodiscard]] Result<void> check_scale(float scale, const Layout& layout, std::uint64_t flat,
                                       std::string_view method);

/// Reads the scale at body[at], which must be there. The bytes need not be trusted. Errors are
/// corrupt.
[[nodiscard]] Result<float> read_scale(Bytes body, std::size_t at);

/// Rounds x stochastically to multiples of scale / levels and writes these multiples to `out`. x is
/// the block's elements from `begin` on. A scale of 0 gives zeros; a larger |x| counts as `scale`.
void quantize_run(std::span<const float> x, float scale, std::int32_t levels, const Block& block,
                  std::size_t begin, std::uint64_t seed, std::int16_t* out);

/// Rounds x to the nearest level, for error feedback, which needs a contraction (Karimireddy 2019,
/// assumption A) rather than unbiased rounding. Levels are multiples of scale / levels; values
/// beyond the last level become the last level. Returns the scale, at most max_abs. max_abs is the
/// largest |x| and at most scale_max. Up to 15 levels, the scale nearly minimizes the squared error
/// (Max 1960, "Quantizing for minimum distortion"): with few levels and the largest |x| as the
/// scale, most other values would become 0. No error is larger than its value.
[[nodiscard]] float nearest_run(std::span<const float> x, float max_abs, std::int32_t levels,
                                std::int16_t* out);

/// Returns the first `elements` levels of `room`, which grows as needed.
[[nodiscard]] std::span<std::int16_t> levels_in(std::vector<std::int16_t>& room,
                                                std::size_t elements);

/// Appends the levels, entropy-coded by their classes or as bit fields, whichever is shorter.
/// Returns whether they are entropy-coded. |level| <= levels.
[[nodiscard]] bool append_levels(std::span<const std::int16_t> x, std::int32_t levels,
                                 LevelScratch& scratch, std::vector<std::byte>& out,
                                 const LevelClasses& classes = {});

/// Decodes the levels of `elements` values from bytes that need not be trusted. The result lies in
/// scratch.levels. 1 <= levels <= 32767. Errors are corrupt.
[[nodiscard]] Result<std::span<const std::int16_t>> read_levels(Bytes coded, bool is_rans,
                                                                std::int32_t levels,
                                                                std::size_t elements,
                                                                DecodeScratch& scratch,
                                                                const LevelClasses& classes = {});

}  // namespace fl::codec
