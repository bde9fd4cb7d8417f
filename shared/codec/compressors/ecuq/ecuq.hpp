// SPDX-License-Identifier: Apache-2.0
// Shared by ecuq's encoder and decoder (ecuq.cpp) and the search for its step (step.cpp).
#pragma once

#include "kernels/generic/rans.hpp"
#include "kernels/kernels.hpp"
#include "shared/codec/core/compressor.hpp"
#include "shared/codec/entropy/level_coder.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace fl::codec {

inline constexpr double ecuq_rate_min = 0.05;
inline constexpr double ecuq_rate_max = 8;
inline constexpr float ecuq_step_min = 0x1p-126f;
inline constexpr float ecuq_step_max = 0x1p121f;
inline constexpr std::int32_t ecuq_levels_max = rans_levels_max;
inline constexpr std::size_t ecuq_listed_bytes = sizeof(std::uint16_t) + sizeof(float);
inline constexpr int ecuq_class_bits_max = 3;
static_assert(1 << ecuq_class_bits_max == rans_classes_max);

/// How levels are rounded and decoded: with subtractive dither, or to the nearest level and decoded
/// to the level's centroid.
enum class EcuqMode { dither, centroid };

/// Plain data; any thread.
struct EcuqSettings {
  double rate;  // The wanted bits for each value in the payload, ecuq_rate_min to ecuq_rate_max.
  EcuqMode mode = EcuqMode::dither;
  EcuqMode mode_otherwise = EcuqMode::dither;  // The mode of a spec that does not set it.

  [[nodiscard]] bool is_dithered() const { return mode == EcuqMode::dither; }
  /// Whether levels become runs of zeros (ecuq.cpp), so that a block of part_elements_max has only
  /// a kilobyte or so.
  [[nodiscard]] bool sends_few() const { return rate <= 0.2; }

  /// The number of classes is 2^(class bits). These are the class bits of a block that is not
  /// small.
  [[nodiscard]] int class_bits_most() const {
    if (!is_dithered() || rate >= 3) return 0;
    return rate >= 2 ? 1 : rate > 1 ? 2 : ecuq_class_bits_max;
  }

  /// The class bits of a block with this many elements and levels from -top to top.
  [[nodiscard]] int class_bits_of(std::size_t elements, std::int32_t top) const {
    // The least number of values for each frequency in the block's tables, so that a table costs
    // less than it gains. It also keeps all classes together within rANS's number of symbols, but
    // for large blocks, which are coded as runs. Learned frequencies (adaptive_coder.hpp) cost
    // less.
    constexpr std::size_t values_per_frequency = 256;
    constexpr std::size_t values_per_learned = 64;
    static_assert(part_elements_max / values_per_frequency <= rans_symbols_max);
    static_assert(adaptive_levels_max / values_per_learned <= rans_symbols_max);
    const bool are_learned = elements <= adaptive_levels_max;
    const std::size_t values = (are_learned ? values_per_learned : values_per_frequency) *
                               static_cast<std::size_t>(2 * top + 1);
    int bits = class_bits_most();
    while (bits > 0 && elements < values << bits) --bits;
    return bits;
  }

  /// Rounds x to levels and returns the largest |level|. The dither begins at element `first` of
  /// the key's stream. With dither it also fills `classes` (for class_bits_most()), unless that is
  /// empty.
  std::int32_t quantize(std::span<const float> x, float step, std::uint64_t key,
                        std::span<std::int16_t> levels, std::span<std::uint8_t> classes,
                        std::uint64_t first = 0) const {
    if (!is_dithered()) return kernels().round(x.data(), x.size(), step, levels.data());
    return kernels().dither(
        x.data(), x.size(),
        {.step = step, .key = key, .first = first, .class_bits = class_bits_most()}, levels.data(),
        classes.empty() ? nullptr : classes.data());
  }
};

/// Values with a larger magnitude are listed, because with any dither the levels of the others are
/// at most 127.
inline float ecuq_levelled_max(float step) { return step * (ecuq_levels_max - 0.5f); }

/// The step with which the payload of these tensors, in blocks of `block_elements`, has
/// settings.rate bits for each value. It is computed from a sample of the values. Returns 0 if the
/// sample is empty or all its values are 0, or if one is not finite.
[[nodiscard]] float ecuq_step_for(const EcuqSettings& settings,
                                  std::span<const std::span<const float>> tensors,
                                  std::uint32_t block_elements = block_elements_default);

}  // namespace fl::codec
