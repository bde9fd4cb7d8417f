// SPDX-License-Identifier: Apache-2.0
// Large blocks: blocks of more than part_elements_max elements (block_map.hpp). Codecs that send
// few values use them. Three kinds are coded whole: sparse blocks with at most a 16th of the
// elements selected, ecuq's runs, and low-rank matrices. All others are coded in parts. After the
// format id:
//
//   33 parts  the size in bytes of each part as u32, then the parts, one after the other. Each is a
//             block of part_elements_max elements, the last one of the rest. Its format may be any
//             but this one and the low-rank ones.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/codec/blocks/selector.hpp"
#include "shared/codec/core/compressor.hpp"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace fl::codec {

/// Does compressor.encode() for a block of any size. If the compressor leaves out zeros and at
/// least a 16th of the values (of a part) are zeros, it writes a sparse block of the others, unless
/// that is too long. Errors are those of encode().
[[nodiscard]] Result<void> encode_block(const Compressor& compressor, std::span<const float> x,
                                        const Scan& scan, const Layout& layout, const Block& block,
                                        std::uint64_t seed, const CompressorPlan& plan,
                                        EncodeScratch& scratch, std::vector<std::byte>& out);
/// encode_block() that never leaves out zeros.
[[nodiscard]] Result<void> encode_all_values(const Compressor& compressor, std::span<const float> x,
                                             const Scan& scan, const Layout& layout,
                                             const Block& block, std::uint64_t seed,
                                             const CompressorPlan& plan, EncodeScratch& scratch,
                                             std::vector<std::byte>& out);

/// encode_selected() (sparse_block.hpp) for a block of any size. If more than sparse_values_max()
/// elements are selected, it writes the block in parts; then `selected` must not have a key.
[[nodiscard]] Result<void> encode_selected_block(const Selected& selected,
                                                 const Compressor& quantizer, const Layout& layout,
                                                 const Block& block, std::uint64_t seed,
                                                 const CompressorPlan& plan, EncodeScratch& scratch,
                                                 std::vector<std::byte>& out);

/// Calls use(the part's bytes, the index of its first element, its elements) for each part of a
/// block of `elements` elements that is coded in parts. `body` is the block without its id; it need
/// not be trusted. Errors: corrupt; those of use(), with the part's number.
using UsePart = std::function<Result<void>(Bytes part, std::size_t begin, std::size_t elements)>;
[[nodiscard]] Result<void> for_each_coded_part(Bytes body, std::size_t elements,
                                               const UsePart& use);

/// Decodes a block that is coded in parts. `body` is the block without its id; it need not be
/// trusted. Requires: `out` has more than part_elements_max elements. Errors: corrupt.
[[nodiscard]] Result<void> decode_parts(Bytes body, std::span<float> out, DecodeScratch& scratch);

}  // namespace fl::codec
