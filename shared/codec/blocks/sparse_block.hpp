// SPDX-License-Identifier: Apache-2.0
// Sparse blocks: blocks of selected elements (selector.hpp). All other elements decode to 0. After
// the format id:
//
//   16 sparse  u16 k, less than the block's elements. If k > 0, the indices (index_coder.hpp) and
//              the inner block: the selected values as a block of k elements, in a format with
//              FormatRow::may_be_inside
//   17 randk   u16 k, at least 1 and less than the block's elements; u64 the key of the indices
//              (random_indices); the inner block as above
//
// If all elements of a block are selected, only the inner block is written. Formats 16 and 17 can't
// be inner blocks, so blocks are nested at most three deep: parts, a sparse block, its inner block.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/codec/blocks/selector.hpp"
#include "shared/codec/core/compressor.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace fl::codec {

/// The most elements that may be selected in a block of `elements` elements. In a large block
/// (large_block.hpp) it is about a 16th: more elements are shorter in parts, which can use bitmaps
/// instead of Golomb codes. It also makes k fit a u16.
[[nodiscard]] constexpr std::size_t sparse_values_max(std::size_t elements) {
  return elements <= part_elements_max ? elements : (elements - 1) / 16;
}

/// The most bytes of a sparse block with up to `selected` of `elements` elements.
[[nodiscard]] std::size_t sparse_bytes_max(const Compressor& quantizer, std::size_t elements,
                                           std::size_t selected);

/// Encodes the selected elements of a block and replaces `out` by its bytes. `plan`: what
/// Compressor::plan_selected() made. Requires: at most
/// sparse_values_max() elements are selected. Errors: invalid_input for a selected value that is
/// not finite, and the quantizer's errors. Both name tensor[index].
[[nodiscard]] Result<void> encode_selected(const Selected& selected, const Compressor& quantizer,
                                           const Layout& layout, const Block& block,
                                           std::uint64_t seed, const CompressorPlan& plan,
                                           EncodeScratch& scratch, std::vector<std::byte>& out);

/// Whether the block's format is sparse: format 16 or 17, or 32 (ecuq's runs without dither).
[[nodiscard]] inline bool is_sparse(Bytes block) {
  return !block.empty() && format_row(block).kind == FormatKind::sparse;
}

/// Reads the selected elements of a block. The result points into `scratch`; its values may be
/// infinite or NaN. Requires: is_sparse(block). Errors: corrupt.
[[nodiscard]] Result<SelectedValues> read_selected(Bytes block, std::size_t elements,
                                                   DecodeScratch& scratch);
/// Reads formats 16 and 17. `body` is the block without its id. In all else it is like
/// read_selected().
[[nodiscard]] Result<SelectedValues> read_sparse(BlockFormat id, Bytes body, std::size_t elements,
                                                 DecodeScratch& scratch);
/// Fills `out` with zeros and puts the selected values at their indices.
void place(const SelectedValues& selected, std::span<float> out);
/// decode_block() for a sparse block. Requires: is_sparse(block).
[[nodiscard]] Result<void> decode_sparse(Bytes block, std::span<float> out, DecodeScratch& scratch);

}  // namespace fl::codec
