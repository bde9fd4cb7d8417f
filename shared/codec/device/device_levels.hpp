// SPDX-License-Identifier: Apache-2.0
// How a device's tally of a block's levels becomes their code. LevelCoder is the interface that
// compressors implement; the functions below are what the implementations have in common.
#pragma once

#include "kernels/codec_device.hpp"
#include "shared/codec/core/block_map.hpp"
#include "shared/codec/core/compressor.hpp"
#include "shared/codec/entropy/level_coder.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace fl::codec {

/// Lets a device round and code the levels of a compressor's blocks. Immutable; any thread.
class LevelCoder {
 public:
  virtual ~LevelCoder() = default;
  /// Blocks with fewer elements are coded on the CPU. By default these are the blocks whose levels
  /// are coded without a table (adaptive_coder.hpp).
  [[nodiscard]] virtual std::size_t elements_min() const { return adaptive_levels_max + 1; }
  /// Whether the device saves more time than it takes to copy the vector to it.
  [[nodiscard]] virtual bool is_worth_a_copy() const { return true; }
  /// Whether the device saves so much time that the codec should not use large blocks
  /// (block_map.hpp), which a device can't code.
  [[nodiscard]] virtual bool is_worth_small_blocks() const { return true; }
  /// How the device must round the block's values. nullopt: the CPU must code this block.
  [[nodiscard]] virtual std::optional<LevelBlock> level_block(const Block& block,
                                                              std::uint64_t seed,
                                                              const CompressorPlan& plan) const = 0;
  /// How the device must code the levels. Fills `out` with the block's bytes before the stream. If
  /// the returned `top` is 0, the CPU must code this block.
  [[nodiscard]] virtual LevelCode level_code(const LevelBlock& block, const LevelTally& tally,
                                             std::vector<std::byte>& out) const = 0;
};

/// A block that the device rounds stochastically: every `bucket` values like quantize_run()
/// (quantized_levels.hpp), with their largest magnitude as the scale. 1 <= levels <= 127.
[[nodiscard]] LevelBlock stochastic_block(const Block& block, std::int32_t levels,
                                          std::uint32_t bucket, std::uint64_t seed);

/// A block that the device rounds like nearest_run() rounds every `bucket` values.
[[nodiscard]] LevelBlock fitted_block(const Block& block, std::int32_t levels,
                                      std::uint32_t bucket);

/// The code that has one bit for each of the first `levels` levels. They must be -1 or 0.
[[nodiscard]] LevelCode packed_levels(std::uint32_t levels);

/// How often each level occurs in all classes of the block together; level l is at l + 127.
[[nodiscard]] std::array<std::uint32_t, device_alphabet> count_levels(const LevelBlock& block,
                                                                      const LevelTally& tally);

/// Appends the tables (level_coder.hpp) of levels up to `top`, in 2^class_bits classes, and returns
/// the code of the stream that follows them. `packed` is the length of bit fields in bytes: the
/// stream's bytes_max is such that tables and stream are shorter. If the tables alone are not, the
/// returned `top` is 0 and `out` has no meaning.
[[nodiscard]] LevelCode append_level_tables(const LevelBlock& block, const LevelTally& tally,
                                            std::int32_t top, int class_bits, std::size_t packed,
                                            std::vector<std::byte>& out);

}  // namespace fl::codec
