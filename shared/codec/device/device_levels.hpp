// From a device's tally of a block's levels to their code: what LevelCoders have in common.
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

namespace fl {

/// Lets a device round and code the levels of a compressor's blocks. Immutable; any thread.
class LevelCoder {
 public:
  virtual ~LevelCoder() = default;
  /// Smaller blocks are coded on the CPU: levels as few as these have no tables
  /// (adaptive_coder.hpp).
  [[nodiscard]] virtual std::size_t elements_min() const { return adaptive_levels_max + 1; }
  /// Whether the device saves more time than it takes to copy the vector to it.
  [[nodiscard]] virtual bool is_worth_a_copy() const { return true; }
  /// Whether the device saves so much that the codec gives up its large blocks (block_map.hpp),
  /// which no device codes.
  [[nodiscard]] virtual bool is_worth_small_blocks() const { return true; }
  /// How the block's values are rounded; nullopt: the CPU must code this block.
  [[nodiscard]] virtual std::optional<LevelBlock> level_block(const Block& block,
                                                              std::uint64_t seed,
                                                              const CompressorPlan& plan) const = 0;
  /// How the levels are coded. Fills `out` with all of the block's bytes before the stream. The
  /// code's `top` is 0 where the CPU must code this block.
  [[nodiscard]] virtual LevelCode level_code(const LevelBlock& block, const LevelTally& tally,
                                             std::vector<std::byte>& out) const = 0;
};

/// A block that is rounded stochastically, as quantize_run() (quantized_levels.hpp) rounds each
/// `bucket` values whose largest magnitude is their scale. 1 <= levels <= 127.
[[nodiscard]] LevelBlock stochastic_block(const Block& block, std::int32_t levels,
                                          std::uint32_t bucket, std::uint64_t seed);

/// As nearest_run() rounds each `bucket` values.
[[nodiscard]] LevelBlock fitted_block(const Block& block, std::int32_t levels,
                                      std::uint32_t bucket);

/// A bit each of the first `levels` levels, which are -1 and 0.
[[nodiscard]] LevelCode packed_levels(std::uint32_t levels);

/// How often each level occurs in all of the block's classes together: level l at l + 127.
[[nodiscard]] std::array<std::uint32_t, device_alphabet> count_levels(const LevelBlock& block,
                                                                      const LevelTally& tally);

/// Appends the tables (level_coder.hpp) of levels up to `top`, in 2^class_bits classes, and returns
/// the code of the stream that follows them. Its `top` is 0 where bit fields, which have `packed`
/// bytes, would be shorter; then `out` is of no use.
[[nodiscard]] LevelCode append_level_tables(const LevelBlock& block, const LevelTally& tally,
                                            std::int32_t top, int class_bits, std::size_t packed,
                                            std::vector<std::byte>& out);

}  // namespace fl
