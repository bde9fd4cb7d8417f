// SPDX-License-Identifier: Apache-2.0
// The interface of compressors. A compressor turns the values of one block into bytes. Encoding
// uses the compressor's settings; decoding needs only the bytes, which begin with the id of their
// block format (block_format.hpp).
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

namespace fl::codec {

class LevelCoder;    // device_levels.hpp.
struct LowRankPlan;  // low_rank_block.hpp.

/// The size of a count sketch of part_elements_max elements. A shorter block has a sketch with
/// fewer columns (share_of_block() in sketch_block.hpp).
struct SketchShape {
  std::uint32_t rows;     // An odd number.
  std::uint32_t columns;  // Cells in a row.
  bool operator==(const SketchShape&) const = default;
};

/// Which count sketches in a codec's payloads a server can add up before it reads them.
struct SummedSketches {
  std::uint32_t block_elements = 0;  // The most elements of a block in the payloads' block map.
  /// By tensor; nullopt if the tensor's sketches can't be added up. Empty if no tensor has sketches
  /// that can.
  std::vector<std::optional<SketchShape>> of_tensor = {};
};

/// How a compressor codes a tensor as the product of two thin factors (low_rank_block.hpp).
struct FactorForm {
  BlockFormat id;
  std::uint32_t rank;
  bool has_own_right;  // For gradzip: the key of R is the sender's own, not shared_key().
};

/// The plan that Compressor::plan() made from a whole vector. Each compressor uses one member.
struct CompressorPlan {
  float step = 0;  // 0: encode() finds a step for each block.
  std::shared_ptr<const LowRankPlan> low_rank = {};
  std::shared_ptr<const LaneSteps> lane_steps = {};  // Null: encode() finds a step for each block.
};

/// Immutable; any thread.
class Compressor {
 public:
  virtual ~Compressor() = default;

  /// The shortest spec that parses to this compressor (spec/parser.cpp).
  [[nodiscard]] virtual std::string spec() const = 0;
  /// The most bytes of a block with `elements` elements that is coded whole.
  [[nodiscard]] virtual std::size_t block_bytes_max(std::size_t elements) const = 0;
  /// The most bytes of this block of this tensor, coded whole or in parts. The default uses
  /// block_bytes_max(), because for most compressors all tensors are alike.
  [[nodiscard]] virtual std::size_t bytes_max_of(const Layout::Tensor& tensor,
                                                 const Block& block) const;
  /// Whether a block must be a contiguous part of its tensor. Such a compressor can't follow a
  /// selector, which gathers values from many places.
  [[nodiscard]] virtual bool needs_places() const { return false; }
  /// Called once for each vector, before its first block is encoded. The default returns an empty
  /// plan.
  [[nodiscard]] virtual CompressorPlan plan(const VectorToPlan& vector) const;
  /// plan() of a compressor behind a selector. It does not know yet which values it will get. The
  /// default returns an empty plan.
  [[nodiscard]] virtual CompressorPlan plan_selected(const VectorToPlan& vector) const;
  /// Whether plan() can use a device.
  [[nodiscard]] virtual bool plans_on_device() const { return false; }
  /// Whether encode_block() (large_block.hpp) may write a block with many zeros as a sparse block
  /// of its other values. The result is shorter and decodes to the same values.
  [[nodiscard]] virtual bool leaves_out_zeros() const { return false; }
  /// Whether a block of part_elements_max elements has only a few bytes, because few values are
  /// sent. A codec with such a compressor uses larger blocks (block_map.hpp).
  [[nodiscard]] virtual bool sends_few() const { return false; }
  /// The size of the sketches that a server can add up before it reads them; nullopt if the
  /// compressor makes no such sketches.
  [[nodiscard]] virtual std::optional<SketchShape> summed_sketch() const { return std::nullopt; }
  /// The factors of a tensor; nullopt if the compressor makes none, or none of this tensor.
  [[nodiscard]] virtual std::optional<FactorForm> factor_form(const Layout::Tensor&) const {
    return std::nullopt;
  }
  /// The bits of a level, if the levels of all clients of a round can be added up because all have
  /// the same steps (lanes.cpp); 0 if they can't. A selector in front of such a compressor draws
  /// by the shared seed.
  [[nodiscard]] virtual int lane_bits() const { return 0; }
  /// Encodes the values x of a block and replaces `out` by its bytes. Requires: at most
  /// part_elements_max values, all finite; `scan` is Kernels::scan() of x. Random choices depend
  /// only on (seed, block.tensor, index of the element in the tensor). Errors: invalid_input, with
  /// a message that names tensor[index], if a value is out of the compressor's range.
  [[nodiscard]] virtual Result<void> encode(std::span<const float> x, const Scan& scan,
                                            const Layout& layout, const Block& block,
                                            std::uint64_t seed, const CompressorPlan& plan,
                                            EncodeScratch& scratch,
                                            std::vector<std::byte>& out) const = 0;
  /// encode() for a block of more than part_elements_max values. Returns false if this block can't
  /// be coded whole; the caller then codes it in parts. The default always returns false.
  [[nodiscard]] virtual Result<bool> encode_large(std::span<const float> x, const Scan& scan,
                                                  const Layout& layout, const Block& block,
                                                  std::uint64_t seed, const CompressorPlan& plan,
                                                  EncodeScratch& scratch,
                                                  std::vector<std::byte>& out) const;
  /// Lets a device do a part of encode(); null if no device can.
  [[nodiscard]] virtual const LevelCoder* level_coder() const { return nullptr; }
};

// Compressors that other files use, by the files that define them: compressors/fp32.cpp,
// compressors/lossless.cpp and compressors/lanes.cpp.

/// "none": binary32 without coding.
[[nodiscard]] std::unique_ptr<const Compressor> make_fp32();
/// "lossless". It codes a selector's values if the spec names no quantizer.
[[nodiscard]] std::unique_ptr<const Compressor> make_lossless();
/// A shared "lossless", which other compressors use for blocks or values that they don't code
/// themselves. Its blocks are never longer than those of "none".
[[nodiscard]] const Compressor& dense_compressor();
/// A shared compressor in place of dense_compressor() for vectors whose levels of "lanes" are added
/// up: multiples of 2^-24, from -8 to 8, which can be added up too.
[[nodiscard]] const Compressor& wide_compressor();

}  // namespace fl::codec
