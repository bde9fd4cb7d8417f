// SPDX-License-Identifier: Apache-2.0
// How a flat vector is cut into the blocks of a payload. Each tensor is cut into runs of
// block_elements consecutive elements; its last run may be shorter. So no block has elements of two
// tensors, and both ends derive the same blocks from (layout, block_elements).
//
// A compressor codes up to part_elements_max elements at once. Codecs that send few values use
// larger blocks (Codec::block_elements), because the overhead of about 16 bytes for each block
// would otherwise be a twentieth of the payload. A large block that can't be coded whole is coded
// in parts (large_block.hpp).
//
// A tensor of one or two elements is bare: its block is its fp32 values and nothing else, so that a
// model of many scalars is no longer than these. No codec would need fewer bytes.
#pragma once

#include "shared/params/layout.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fl::codec {

inline constexpr std::uint32_t block_elements_min = 256;
inline constexpr std::uint32_t part_elements_max = 65536;
inline constexpr std::uint32_t block_elements_max = 16 * part_elements_max;
inline constexpr std::uint32_t block_elements_default = part_elements_max;
inline constexpr std::uint64_t bare_elements_max = 2;
/// Stands for the number of elements that the codec chooses for the layout.
inline constexpr std::uint32_t block_elements_of_codec = 0;

struct Block {
  std::uint32_t tensor;    // Index in the layout.
  std::uint32_t elements;  // 1 to block_elements.
  std::uint64_t first;     // Index of the first element in its tensor.
  std::uint64_t flat;      // Index of the first element in the flat vector.
};

/// Immutable; any thread. Refers to the Layout, which must outlive it.
class BlockMap {
 public:
  /// Requires: block_elements_min <= block_elements <= block_elements_max.
  BlockMap(const Layout& layout, std::uint32_t block_elements);

  [[nodiscard]] const Layout& layout() const { return *layout_; }
  [[nodiscard]] std::uint32_t block_elements() const { return block_elements_; }
  [[nodiscard]] std::uint64_t blocks() const { return first_block_.back(); }
  /// Whether the block is all of a tensor so small that it is bare.
  [[nodiscard]] bool is_bare(const Block& block) const {
    return layout_->tensors()[block.tensor].elements <= bare_elements_max;
  }
  [[nodiscard]] std::uint64_t bare_blocks() const { return bare_blocks_; }
  /// How many consecutive blocks a thread takes at a time when several threads encode or decode.
  [[nodiscard]] std::size_t run_blocks() const {
    return block_elements_ > part_elements_max ? 1 : 8;
  }
  /// Requires: index < blocks().
  [[nodiscard]] Block at(std::uint64_t index) const;
  /// The index of the block with element `first` of a tensor.
  [[nodiscard]] std::uint64_t index_of(std::uint32_t tensor, std::uint64_t first) const {
    return first_block_[tensor] + first / block_elements_;
  }
  /// The index of the block with this element of the flat vector.
  [[nodiscard]] std::uint64_t index_at(std::uint64_t flat) const;
  /// "block 3 (fc1.weight[0..65535])", for messages.
  [[nodiscard]] std::string describe(std::uint64_t index) const;

 private:
  const Layout* layout_;
  std::uint32_t block_elements_;
  std::vector<std::uint64_t>
      first_block_;  // The first block of each tensor; then the number of all blocks.
  std::uint64_t bare_blocks_ = 0;
};

/// How many parts a block of `elements` elements has.
[[nodiscard]] constexpr std::size_t part_count(std::size_t elements) {
  return (elements + part_elements_max - 1) / part_elements_max;
}

/// The most bytes of a block that is coded whole or in parts. bytes_max(elements) is the most bytes
/// of a whole block, or of one part, with this many elements.
[[nodiscard]] std::size_t bytes_max_in_parts(
    std::size_t elements, const std::function<std::size_t(std::size_t elements)>& bytes_max);

}  // namespace fl::codec
