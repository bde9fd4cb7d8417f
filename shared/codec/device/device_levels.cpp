// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/device/device_levels.hpp"

#include "kernels/generic/nearest_scale.hpp"
#include "kernels/generic/pack.hpp"
#include "shared/codec/entropy/level_coder.hpp"
#include "shared/codec/entropy/quantized_levels.hpp"

#include <algorithm>

namespace fl::codec {

LevelBlock stochastic_block(const Block& block, std::int32_t levels, std::uint32_t bucket,
                            std::uint64_t seed) {
  return {.begin = block.flat,
          .elements = block.elements,
          .rounding = LevelRounding::stochastic,
          .most = scale_max,
          .seed = seed,
          .levels = levels,
          .bucket = bucket,
          .stream = block.tensor,
          .first = block.first};
}

LevelBlock fitted_block(const Block& block, std::int32_t levels, std::uint32_t bucket) {
  return {.begin = block.flat,
          .elements = block.elements,
          .rounding = LevelRounding::fitted,
          .least = nearest_scale::least_scale,
          .most = nearest_scale::largest_scale,
          .levels = levels,
          .bucket = bucket};
}

LevelCode packed_levels(std::uint32_t levels) {
  LevelCode code{};
  code.top = 1;
  code.packed = levels;
  code.bytes_max = (levels + 7) / 8;
  return code;
}

std::array<std::uint32_t, device_alphabet> count_levels(const LevelBlock& block,
                                                        const LevelTally& tally) {
  std::array<std::uint32_t, device_alphabet> counts{};
  for (std::size_t c = 0; c < std::size_t{1} << block.class_bits; ++c) {
    for (std::size_t l = 0; l < counts.size(); ++l)
      counts[l] += tally.counts[c * counts.size() + l];
  }
  return counts;
}

LevelCode append_level_tables(const LevelBlock& block, const LevelTally& tally, std::int32_t top,
                              int class_bits, std::size_t packed, std::vector<std::byte>& out) {
  FL_ASSERT(block.elements > adaptive_levels_max);
  LevelCode code{};
  code.class_drop = block.class_bits - class_bits;
  const auto largest = static_cast<std::size_t>(top);
  const std::size_t alphabet = 2 * largest + 1;
  std::array<std::uint32_t, rans_symbols_max> symbols{};
  for (std::size_t c = 0; c < std::size_t{1} << block.class_bits; ++c) {
    const std::uint32_t* const from =
        tally.counts + c * device_alphabet + (device_levels_max - largest);
    const std::size_t to = (c >> code.class_drop) * alphabet;
    for (std::size_t l = 0; l < alphabet; ++l) symbols[to + l] += from[l];
  }
  std::vector<std::byte> tables;
  const RansFrequencies frequencies =
      make_level_tables(std::span(symbols).first(alphabet << class_bits), alphabet, tables);
  if (tables.size() >= packed) return code;
  out.insert(out.end(), tables.begin(), tables.end());
  std::ranges::copy(frequencies, code.frequencies);
  code.bytes_max = static_cast<std::uint32_t>(packed - tables.size() - 1);
  code.top = top;
  return code;
}

}  // namespace fl::codec
