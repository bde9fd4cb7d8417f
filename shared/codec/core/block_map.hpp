// How a flat vector is cut into the blocks of a payload: each tensor into runs of block_elements
// consecutive elements, the last run of a tensor may be shorter. So a block never straddles two
// tensors, and both ends derive the same blocks from (layout, block_elements).
//
// Methods code up to part_elements_max elements at once. Where a block has a few bytes only, what
// stands in each besides, some 16 of them, would be a twentieth of all; so codecs that send few of
// the values take larger blocks (Codec::block_elements).
//
// Immutable; any thread. Refers to the Layout, which must outlive it.
#pragma once

#include "shared/params/layout.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace fl {

inline constexpr std::uint32_t block_elements_min = 256;
inline constexpr std::uint32_t part_elements_max = 65536;
inline constexpr std::uint32_t block_elements_max = 16 * part_elements_max;
inline constexpr std::uint32_t block_elements_default = part_elements_max;
/// In place of a number: what the codec takes for the layout.
inline constexpr std::uint32_t block_elements_of_codec = 0;

struct Block {
  std::uint32_t tensor;    // Index in the layout.
  std::uint32_t elements;  // 1 to block_elements.
  std::uint64_t first;     // Index of the first element in its tensor,
  std::uint64_t flat;      // and in the flat vector.
};

class BlockMap {
 public:
  /// `block_elements` from block_elements_min to block_elements_max.
  BlockMap(const Layout& layout, std::uint32_t block_elements);

  [[nodiscard]] const Layout& layout() const { return *layout_; }
  [[nodiscard]] std::uint32_t block_elements() const { return block_elements_; }
  [[nodiscard]] std::uint64_t blocks() const { return first_block_.back(); }
  /// How many blocks there must be for each thread where several encode or decode.
  [[nodiscard]] std::size_t run_blocks() const {
    return block_elements_ > part_elements_max ? 1 : 8;
  }
  /// `index` < blocks().
  [[nodiscard]] Block at(std::uint64_t index) const;
  /// "block 3 (fc1.weight[0..65535])", for messages.
  [[nodiscard]] std::string describe(std::uint64_t index) const;

 private:
  const Layout* layout_;
  std::uint32_t block_elements_;
  std::vector<std::uint64_t> first_block_;  // Of each tensor, and one past the last.
};

}  // namespace fl
