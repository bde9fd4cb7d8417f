// The payload format that all codecs share: one flat fp32 vector of a Layout, in blocks that decode
// in any order. Little-endian, no padding:
//
//    0  4   "FLP3"
//    4  u32 block_elements; the blocks follow from it and the layout (block_map.hpp)
//    8  8   the first half of the layout's digest
//   16      u32 size in bytes of each block
//           the blocks, one after the other, to the payload's end (compressor.hpp says what is in
//           them)
//
// Small updates have a few thousand bytes, so nothing is said here that a message says already: the
// codec's name is in that which announces the payload.
#pragma once

#include "kernels/kernels.hpp"
#include "shared/base/error.hpp"
#include "shared/codec/blocks/low_rank_block.hpp"
#include "shared/codec/blocks/sketch_block.hpp"
#include "shared/codec/blocks/sparse_block.hpp"
#include "shared/codec/core/block_map.hpp"
#include "shared/codec/core/byte_io.hpp"
#include "shared/codec/core/compressor.hpp"
#include "shared/params/layout.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace fl {

inline constexpr std::size_t payload_header_bytes = 16;

/// Everything before the blocks. `block_bytes` has one size for each of the map's blocks.
[[nodiscard]] std::vector<std::byte> payload_prefix(const BlockMap& map,
                                                    std::span<const std::uint32_t> block_bytes);

/// What may be taken of a block as it is.
struct Undecoded {
  std::optional<std::uint64_t> right_key = {};  // Of a matrix' second factor (shared_key()).
  std::optional<SketchShape> sketch = {};
};

/// Decodes a payload that need not be trusted. One thread per reader; several readers may share a
/// source. Refers to the source and the layout, which must outlive it. Memory: 8 bytes per block,
/// buffers of one block, and of a tensor of low rank one factor, while its first block is decoded
/// about four times: blocks are cheapest in order. With several threads (0: one for each core) as
/// much for each of them.
class PayloadReader {
 public:
  /// Checks all that stands before the blocks, and that the sizes add up to `bytes`. Errors:
  /// corrupt; conflict for the payload of another layout; the source's.
  [[nodiscard]] static Result<PayloadReader> open(ByteSource& source, std::uint64_t bytes,
                                                  const Layout& layout);

  [[nodiscard]] const Layout& layout() const { return map_.layout(); }
  [[nodiscard]] std::uint64_t blocks() const { return map_.blocks(); }
  /// No block has more.
  [[nodiscard]] std::uint32_t block_elements() const { return map_.block_elements(); }
  /// Where the block's elements lie. `index` < blocks().
  [[nodiscard]] Block block(std::uint64_t index) const { return map_.at(index); }

  /// Fills `out`, block(index).elements values, and returns their norms. All values are finite, or
  /// it is an error that names the block and the element; `out` is then without meaning.
  [[nodiscard]] Result<Scan> decode(std::uint64_t index, std::span<float> out);
  /// The same, but of a sparse block with few values these alone, of a block of a matrix much
  /// larger than its factors, whose second one is that of the key, the rows of the first, which
  /// need not be finite when decoded, and of a sketch of that shape its cells. All are valid until
  /// the next call; `out` is of no use then.
  using Taken = std::variant<Scan, SelectedValues, FactorRows, SketchCells>;
  [[nodiscard]] Result<Taken> decode_or_take(std::uint64_t index, std::span<float> out,
                                             const Undecoded& undecoded = {});
  /// All blocks, into layout().elements() values.
  [[nodiscard]] Result<void> decode_all(std::span<float> out, int threads = 1);
  /// Calls use(its index, block, its values) for every block: with several threads in no order, and
  /// for different blocks at the same time. The error is that of the first block that has one; some
  /// of those behind it may have been used.
  using UseBlock = std::function<void(std::uint64_t, const Block&, std::span<const float>)>;
  [[nodiscard]] Result<void> for_each_block(int threads, const UseBlock& use);

 private:
  PayloadReader(ByteSource& source, BlockMap map) : source_(&source), map_(std::move(map)) {}
  Result<void> read_table(std::uint64_t table_at, std::uint64_t bytes);
  Result<Scan> decode_bytes(std::uint64_t index, Bytes bytes, std::span<float> out);
  [[nodiscard]] Result<Scan> scan_finite(const Block& block, std::span<const float> values) const;
  [[nodiscard]] Error in_block(std::uint64_t index, const Error& error) const;
  Result<Bytes> look_at_block(std::uint64_t index, std::vector<std::byte>& scratch);
  Result<RightFactor*> right_factor_of(std::uint64_t index, Bytes bytes);
  /// decode(index) by use(reader, lane, index), for all blocks.
  using DecodeOne = std::function<Result<Scan>(PayloadReader&, std::size_t, std::uint64_t)>;
  Result<void> decode_by(int threads, const DecodeOne& decode_one);

  ByteSource* source_;
  BlockMap map_;
  std::vector<std::uint64_t> begin_;  // Of each block in the payload, and the payload's end.
  std::vector<std::byte> bytes_;      // Of the block being decoded, unless they lie in memory.
  DecodeScratch scratch_;
  std::optional<RightFactor> right_factor_;  // Of the tensor that a block was last decoded of.
  std::uint32_t right_factor_tensor_ = 0;
  std::vector<float> rows_;  // Of the left factor.
};

}  // namespace fl
