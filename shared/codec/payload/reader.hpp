// SPDX-License-Identifier: Apache-2.0
// The payload format, which all codecs share: one flat fp32 vector of a Layout, in blocks that can
// be decoded in any order. Little-endian, no padding:
//
//    0  4   "FLP4"
//    4  u32 block_elements; the blocks follow from it and the layout (block_map.hpp)
//    8  8   the first half of the layout's digest
//   16      u32 size in bytes of each block that is not bare
//           the blocks, one after the other, to the payload's end (blocks/decode.hpp); a bare block
//           is its elements as IEEE binary32
//
// "FLP3" is the same without bare blocks: all have a size, and begin with a block format. It is
// written where the layout has no tensors so small, and read with every layout.
//
// Small updates have a few thousand bytes, so the header repeats nothing that a message contains
// already: the codec's name is in the message that announces the payload.
#pragma once

#include "kernels/kernels.hpp"
#include "shared/base/error.hpp"
#include "shared/codec/blocks/drawn_rights.hpp"
#include "shared/codec/blocks/lane_block.hpp"
#include "shared/codec/blocks/low_rank_block.hpp"
#include "shared/codec/blocks/sketch_block.hpp"
#include "shared/codec/blocks/sparse_block.hpp"
#include "shared/codec/core/block_map.hpp"
#include "shared/codec/core/byte_io.hpp"
#include "shared/codec/core/compressor.hpp"
#include "shared/params/layout.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace fl::codec {

inline constexpr std::size_t payload_header_bytes = 16;

/// Returns everything before the blocks. `block_bytes` has the size of each block of the map, also
/// of the bare ones.
[[nodiscard]] std::vector<std::byte> payload_prefix(const BlockMap& map,
                                                    std::span<const std::uint32_t> block_bytes);

/// Which blocks decode_or_take() returns undecoded.
struct Undecoded {
  /// Matrices whose right factor R has this key (shared_key()).
  std::optional<std::uint64_t> right_key = {};
  /// Sketches of this shape.
  std::optional<SketchShape> sketch = {};
};

/// The factors that a payload may have, because its codec makes them.
struct ExpectedFactors {
  std::vector<std::optional<FactorForm>> of_tensor;  // Codec::factor_forms().
  std::uint64_t shared_seed = 0;
};

/// Decodes a payload that need not be trusted. One thread per reader; several readers may share a
/// source. The source and the layout must outlive it. Memory: 8 bytes per block, buffers for one
/// block, and for a low-rank tensor its right factor (about four times as much while its first
/// block is decoded). The factor is kept until a block of another tensor is decoded, so decoding
/// blocks in order is cheapest. With several threads (0: one per core) each thread needs this
/// memory, but all share the factors of gradzip, which follow from a few bytes.
class PayloadReader {
 public:
  /// Checks everything before the blocks, and that all sizes add up to `bytes`. With `rights`
  /// several readers share the factors of gradzip. Errors: corrupt; conflict if the payload has
  /// another layout; the source's.
  [[nodiscard]] static Result<PayloadReader> open(
      ByteSource& source, std::uint64_t bytes, const Layout& layout,
      std::shared_ptr<DrawnRights> rights = std::make_shared<DrawnRights>());

  /// From now on factors of another format, rank or key are corrupt, before memory is taken for
  /// them. For a payload whose sender chose the codec itself, do not call it.
  void expect(ExpectedFactors factors) { expected_ = std::move(factors); }

  [[nodiscard]] const Layout& layout() const { return map_.layout(); }
  [[nodiscard]] std::uint64_t blocks() const { return map_.blocks(); }
  /// The most elements of a block.
  [[nodiscard]] std::uint32_t block_elements() const { return map_.block_elements(); }
  /// The block's place in the layout. `index` < blocks().
  [[nodiscard]] Block block(std::uint64_t index) const { return map_.at(index); }
  /// The offset of the first byte after the block. Blocks follow each other without gaps.
  [[nodiscard]] std::uint64_t end_of(std::uint64_t index) const { return begin_[index + 1]; }

  /// Decodes a block into `out`, block(index).elements values, and returns their norms. Errors:
  /// corrupt, naming the block, and for a value that is not finite the element; the source's. After
  /// an error `out` has no meaning.
  [[nodiscard]] Result<Scan> decode(std::uint64_t index, std::span<float> out);
  /// Like decode(), but returns some blocks undecoded, and then `out` has no meaning:
  /// - of a sparse block with few values, only these values;
  /// - of a gradzip matrix much larger than its factors, whose R has `undecoded.right_key`, the
  ///   rows of L. Their product with R need not be finite;
  /// - of a sketch with the shape `undecoded.sketch`, its cells.
  /// What is returned is valid until the next call.
  using Taken = std::variant<Scan, SelectedValues, FactorRows, SketchCells>;
  [[nodiscard]] Result<Taken> decode_or_take(std::uint64_t index, std::span<float> out,
                                             const Undecoded& undecoded = {});
  /// Adds the block's tally for this step (add_lane_tally() in lane_block.hpp). Errors: corrupt,
  /// naming the block; the source's.
  [[nodiscard]] Result<void> add_lane_tally(std::uint64_t index, LaneStep step, LaneTally& sum);
  /// The integers of the block's values, as `run` says (read_lane_integers() in lane_block.hpp).
  /// Errors: corrupt, naming the block; the source's.
  [[nodiscard]] Result<void> read_lane_integers(std::uint64_t index, const LaneRun& run,
                                                std::span<std::int32_t> out);
  /// Decodes all blocks into layout().elements() values.
  [[nodiscard]] Result<void> decode_all(std::span<float> out, int threads = 1);
  /// Calls use(index, block, values) for every block. With several threads the calls come in no
  /// particular order and at the same time. Returns the error of the first damaged block; some
  /// blocks behind it may have been used.
  using UseBlock = std::function<void(std::uint64_t, const Block&, std::span<const float>)>;
  [[nodiscard]] Result<void> for_each_block(int threads, const UseBlock& use);
  /// Forgets the right factor if it has more bytes than this. The next block that needs it reads or
  /// draws it again.
  void forget_right_above(std::size_t bytes);

 private:
  PayloadReader(ByteSource& source, BlockMap map, bool has_bare,
                std::shared_ptr<DrawnRights> rights)
      : source_(&source), map_(std::move(map)), has_bare_(has_bare), rights_(std::move(rights)) {}
  Result<void> read_table(std::uint64_t bytes);
  [[nodiscard]] std::uint64_t sizes_in_table() const {
    return map_.blocks() - (has_bare_ ? map_.bare_blocks() : 0);
  }
  [[nodiscard]] bool is_bare(std::uint64_t index) const {
    return has_bare_ && map_.is_bare(map_.at(index));
  }
  Result<Scan> decode_bytes(std::uint64_t index, Bytes bytes, std::span<float> out);
  [[nodiscard]] Result<Scan> scan_finite(const Block& block, std::span<const float> values) const;
  [[nodiscard]] Error in_block(std::uint64_t index, const Error& error) const;
  Result<Bytes> look_at_block(std::uint64_t index, std::vector<std::byte>& scratch);
  Result<RightFactor*> right_factor_of(std::uint64_t index, Bytes bytes);
  /// Decodes all blocks by decode_one(reader, lane, index), on several threads.
  using DecodeOne = std::function<Result<Scan>(PayloadReader&, std::size_t, std::uint64_t)>;
  Result<void> decode_by(int threads, const DecodeOne& decode_one);

  ByteSource* source_;
  BlockMap map_;
  bool has_bare_;  // The payload's form is FLP4.
  std::shared_ptr<DrawnRights> rights_;
  std::optional<ExpectedFactors> expected_;
  std::vector<std::uint64_t> begin_;  // The beginning of each block, and the payload's end.
  std::vector<std::byte> bytes_;      // The block being decoded, unless it lies in memory already.
  DecodeScratch scratch_;
  std::optional<RightFactor> right_factor_;  // R of the last low-rank tensor, right_factor_tensor_.
  std::uint32_t right_factor_tensor_ = 0;
  std::vector<float> rows_;  // Rows of L.
};

}  // namespace fl::codec
