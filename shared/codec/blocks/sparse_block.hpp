// Blocks of selected elements (selector.hpp). After the method id:
//
//   16 sparse  u16 k, below the block's elements; when k > 0 the indices (index_coder.hpp), then
//              the selected values as the bytes of a block of k elements, of any method but these
//   17 randk   u16 k, from 1 on, u64 the key that the indices follow from (random_indices), then
//              the selected values as above
//
// Elements that are not selected decode to 0. A block of which all is selected is written as the
// block of its values. No sparse block holds another, so decoding goes three blocks deep at most:
// parts, a sparse one, its values.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/codec/blocks/selector.hpp"
#include "shared/codec/core/compressor.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace fl {

/// What a block of so many elements may have selected. Of a large one (large_block.hpp) no more
/// than Golomb codes are good for: more of them are shorter in parts, where there may be a bitmap;
/// and k is a u16.
[[nodiscard]] constexpr std::size_t sparse_values_max(std::size_t elements) {
  return elements <= part_elements_max ? elements : (elements - 1) / 16;
}

/// The most bytes of a block with up to `selected` of so many elements.
[[nodiscard]] std::size_t sparse_bytes_max(const Compressor& quantizer, std::size_t elements,
                                           std::size_t selected);

/// Replaces `out` by the block's bytes; at most sparse_values_max() are selected. Errors name
/// tensor[index]: the quantizer's, and invalid_input for a selected value that is not finite.
[[nodiscard]] Result<void> encode_selected(const Selected& selected, const Compressor& quantizer,
                                           const Layout& layout, const Block& block,
                                           std::uint64_t seed, EncodeScratch& scratch,
                                           std::vector<std::byte>& out);

/// Whether what it has are values and where they are: the two above, and ecuq's runs without
/// dither.
[[nodiscard]] inline bool is_sparse(Bytes block) {
  return !block.empty() && format_row(block).kind == FormatKind::sparse;
}

/// Of a block that is_sparse(), in the scratch. May give values that are not finite. Errors are
/// corrupt.
[[nodiscard]] Result<SelectedValues> read_selected(Bytes block, std::size_t elements,
                                                   DecodeScratch& scratch);
/// Reads the formats 16 and 17: `body` is what follows the id.
[[nodiscard]] Result<SelectedValues> read_sparse(BlockFormat id, Bytes body, std::size_t elements,
                                                 DecodeScratch& scratch);
/// Among zeros.
void place(const SelectedValues& selected, std::span<float> out);
/// decode_block() of a block that is_sparse().
[[nodiscard]] Result<void> decode_sparse(Bytes block, std::span<float> out, DecodeScratch& scratch);

}  // namespace fl
