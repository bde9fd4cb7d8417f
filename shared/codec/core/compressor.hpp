// What turns the values of one block into bytes. A Compressor encodes with its settings; decoding
// needs nothing but the bytes, which begin with the id of their format (block_format.hpp).
#pragma once

#include "kernels/kernels.hpp"
#include "shared/base/error.hpp"
#include "shared/codec/core/block_format.hpp"
#include "shared/codec/core/block_map.hpp"
#include "shared/codec/core/plan.hpp"
#include "shared/codec/core/scratch.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fl {

class LevelCoder;    // device_levels.hpp.
struct LowRankPlan;  // low_rank_block.hpp.
struct SketchPlan;   // countsketch.cpp.

/// The size of a count sketch of part_elements_max elements, or of a shorter block's share of it
/// (sketch_block.hpp).
struct SketchShape {
  std::uint32_t rows;     // An odd number.
  std::uint32_t columns;  // Cells of a row.
  bool operator==(const SketchShape&) const = default;
};

/// Which sketches of a codec's payloads can be added up before they are read.
struct SummedSketches {
  std::uint32_t block_elements = 0;  // The payloads' largest block.
  /// nullopt: the tensor's sketches can't be added up. Empty: no tensor's can.
  std::vector<std::optional<SketchShape>> of_tensor = {};
};

/// What a Compressor found out about a whole vector before its blocks are encoded.
struct CompressorPlan {
  float step = 0;  // 0: each block finds its own.
  std::shared_ptr<const LowRankPlan> low_rank = {};
  std::shared_ptr<const SketchPlan> sketches = {};  // Null: each block makes its own.
};

/// Immutable; any thread.
class Compressor {
 public:
  virtual ~Compressor() = default;

  /// The shortest spec that parses to this compressor.
  [[nodiscard]] virtual std::string spec() const = 0;
  /// The most bytes of a block of so many elements, if it is coded whole.
  [[nodiscard]] virtual std::size_t block_bytes_max(std::size_t elements) const = 0;
  /// The most bytes of this block of this tensor, whole or in parts. The default asks
  /// block_bytes_max(), for compressors to which all tensors are alike.
  [[nodiscard]] virtual std::size_t bytes_max_of(const Layout::Tensor& tensor,
                                                 const Block& block) const;
  /// Whether a block must be a contiguous part of its tensor. Then it can't follow a selector,
  /// which gathers values from many places.
  [[nodiscard]] virtual bool needs_places() const { return false; }
  /// Called once a vector, before its first block. Compressors behind a selector get an empty plan.
  [[nodiscard]] virtual CompressorPlan plan(const VectorToPlan& vector) const;
  /// Whether a device can do a part of plan().
  [[nodiscard]] virtual bool plans_on_device() const { return false; }
  /// Whether a block with many zeros becomes shorter as a sparse block (sparse_block.hpp) of its
  /// other values, and decodes to the same.
  [[nodiscard]] virtual bool leaves_out_zeros() const { return false; }
  /// Whether so few values are sent that a block of part_elements_max elements has only a few
  /// bytes. Codecs with this property use larger blocks.
  [[nodiscard]] virtual bool sends_few() const { return false; }
  /// The size of the sketches that can be added up before they are read; nullopt: there are none.
  [[nodiscard]] virtual std::optional<SketchShape> summed_sketch() const { return std::nullopt; }
  /// Replaces `out` by the block's bytes. There are at most part_elements_max values, all finite;
  /// `scan` is theirs. Random choices depend only on (seed, block.tensor, element in the tensor).
  /// Errors are invalid_input and name tensor[index].
  [[nodiscard]] virtual Result<void> encode(std::span<const float> x, const Scan& scan,
                                            const Layout& layout, const Block& block,
                                            std::uint64_t seed, const CompressorPlan& plan,
                                            EncodeScratch& scratch,
                                            std::vector<std::byte>& out) const = 0;
  /// encode() for a block of more than part_elements_max values. False: this block can't be coded
  /// whole, and the caller codes it in parts. The default is always false.
  [[nodiscard]] virtual Result<bool> encode_large(std::span<const float> x, const Scan& scan,
                                                  const Layout& layout, const Block& block,
                                                  std::uint64_t seed, const CompressorPlan& plan,
                                                  EncodeScratch& scratch,
                                                  std::vector<std::byte>& out) const;
  /// What lets a device do a part of encode(); null: no device can.
  [[nodiscard]] virtual const LevelCoder* level_coder() const { return nullptr; }
};

// Two compressors that others use: compressors/fp32.cpp and compressors/lossless.cpp define them.

/// "none": every value as it is.
[[nodiscard]] std::unique_ptr<const Compressor> make_fp32();
/// "lossless": codes a selector's values where its spec names no quantizer.
[[nodiscard]] std::unique_ptr<const Compressor> make_lossless();
/// The "lossless" that compressors use for blocks that they can't code. Never longer than fp32.
[[nodiscard]] const Compressor& dense_compressor();

}  // namespace fl
