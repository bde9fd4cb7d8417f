// What the methods with quantized levels (qsgd, kbit, terngrad) have in common: runs of values that
// share a scale, and behind all scales of a block its levels, to the block's end, either
// entropy-coded (level_coder.hpp) or as bit fields (kernels/generic/pack.hpp). The method id says
// which.
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

namespace fl {

/// Larger scales are refused at both ends: S * (scale / S) must not round to infinity.
inline constexpr float scale_max = 0x1p127f;

/// Errors invalid_input for a scale past scale_max of the values from `flat` on.
[[nodiscard]] Result<void> check_scale(float scale, const Layout& layout, std::uint64_t flat,
                                       std::string_view method);

/// The scale at body[at], from bytes that need not be trusted, which are there.
[[nodiscard]] Result<float> read_scale(Bytes body, std::size_t at);

/// Stochastic rounding of x, the elements of the block from `begin` on, to levels of scale / S. A
/// scale of 0 gives zeros, |x| above the scale counts as the scale.
void quantize_run(std::span<const float> x, float scale, std::int32_t levels, const Block& block,
                  std::size_t begin, std::uint64_t seed, std::int16_t* out);

/// Rounding for error feedback, which wants a contraction (Karimireddy 2019, assumption A) and not
/// the mean: each value becomes the nearest level of scale / S, or the last one. Returns the scale,
/// at most max_abs <= scale_max, which is that of `x`. Up to 15 levels it is nearly the one that
/// loses the least squares of x (Max 1960, "Quantizing for minimum distortion"): with few levels
/// about the largest value, most others become 0. No error is larger than its value.
[[nodiscard]] float nearest_run(std::span<const float> x, float max_abs, std::int32_t levels,
                                std::int16_t* out);

/// Room for this many levels in a scratch's `levels`, which grows as needed.
[[nodiscard]] std::span<std::int16_t> levels_in(std::vector<std::int16_t>& room,
                                                std::size_t elements);

/// Appends the levels in the shorter form. True: entropy-coded, by their classes. |level| <=
/// levels.
[[nodiscard]] bool append_levels(std::span<const std::int16_t> x, std::int32_t levels,
                                 LevelScratch& scratch, std::vector<std::byte>& out,
                                 const LevelClasses& classes = {});

/// The levels of `elements` values, in scratch.levels, from bytes that need not be trusted. 1 <=
/// levels <= 32767. Errors are corrupt.
[[nodiscard]] Result<std::span<const std::int16_t>> read_levels(Bytes coded, bool is_rans,
                                                                std::int32_t levels,
                                                                std::size_t elements,
                                                                DecodeScratch& scratch,
                                                                const LevelClasses& classes = {});

}  // namespace fl
