// What encoding with ecuq (ecuq.cpp) and the search for its step (step.cpp) share.
#pragma once

#include "kernels/generic/rans.hpp"
#include "kernels/kernels.hpp"
#include "shared/codec/core/compressor.hpp"
#include "shared/codec/entropy/level_coder.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace fl {

inline constexpr double ecuq_rate_min = 0.05;
inline constexpr double ecuq_rate_max = 8;
inline constexpr float ecuq_step_min = 0x1p-126f;
inline constexpr float ecuq_step_max = 0x1p121f;
inline constexpr std::int32_t ecuq_levels_max = rans_levels_max;
inline constexpr std::size_t ecuq_listed_bytes = sizeof(std::uint16_t) + sizeof(float);
inline constexpr int ecuq_class_bits_max = 3;
static_assert(1 << ecuq_class_bits_max == rans_classes_max);

enum class EcuqMode { dither, centroid };

struct EcuqSettings {
  double rate;  // Bits a value that the payload is to have, ecuq_rate_min to ecuq_rate_max.
  EcuqMode mode = EcuqMode::dither;
  EcuqMode mode_otherwise = EcuqMode::dither;  // Of a spec that does not say it.

  [[nodiscard]] bool is_dithered() const { return mode == EcuqMode::dither; }
  /// Runs of zeros (ecuq.cpp), a kilobyte or so of a block of part_elements_max.
  [[nodiscard]] bool sends_few() const { return rate <= 0.2; }

  /// Of a block that is not small.
  [[nodiscard]] int class_bits_most() const {
    if (!is_dithered() || rate >= 3) return 0;
    return rate >= 2 ? 1 : rate > 1 ? 2 : ecuq_class_bits_max;
  }

  /// Of a block whose levels are from -top to top.
  [[nodiscard]] int class_bits_of(std::size_t elements, std::int32_t top) const {
    // Of a block, for each frequency in its tables, which then cost less than they gain. So the
    // classes have no more symbols than rANS has; but for large blocks, which are runs. A frequency
    // that is learned (adaptive_coder.hpp) costs less.
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

  /// The levels of x, whose dither begins at `first`, and the largest of them; the classes are
  /// filled unless there are none.
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

/// Larger values are listed, whatever their dither: the others' levels are at most 127.
inline float ecuq_levelled_max(float step) { return step * (ecuq_levels_max - 0.5f); }

/// The step with which these tensors' payload, of blocks of so many elements, has the settings'
/// rate, found on a sample of their values; 0 if all of that is 0, or none is there.
[[nodiscard]] float ecuq_step_for(const EcuqSettings& settings,
                                  std::span<const std::span<const float>> tensors,
                                  std::uint32_t block_elements = block_elements_default);

}  // namespace fl
