// Blocks of more than part_elements_max elements (block_map.hpp), which codecs make that send few
// of the values. After the method id:
//
//   33 parts  the size in bytes of each part as u32, then the parts, one after the other: blocks of
//             part_elements_max elements, the last one of the rest; of any method but this one and
//             those of low rank
//
// Who can code so many at once does, and the block has the bytes of its method: sparse blocks,
// where a 16th of the elements is selected at most; ecuq's runs; matrices of low rank.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/codec/blocks/selector.hpp"
#include "shared/codec/core/compressor.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace fl {

/// method.encode() for a block of any size; with many zeros, if the method leaves them out, that of
/// the others, in a sparse block.
[[nodiscard]] Result<void> encode_block(const Compressor& compressor, std::span<const float> x,
                                        const Scan& scan, const Layout& layout, const Block& block,
                                        std::uint64_t seed, const CompressorPlan& plan,
                                        EncodeScratch& scratch, std::vector<std::byte>& out);
/// The same of all values.
[[nodiscard]] Result<void> encode_all_values(const Compressor& compressor, std::span<const float> x,
                                             const Scan& scan, const Layout& layout,
                                             const Block& block, std::uint64_t seed,
                                             const CompressorPlan& plan, EncodeScratch& scratch,
                                             std::vector<std::byte>& out);

/// encode_selected() (sparse_block.hpp) for a block of any size.
[[nodiscard]] Result<void> encode_selected_block(const Selected& selected,
                                                 const Compressor& quantizer, const Layout& layout,
                                                 const Block& block, std::uint64_t seed,
                                                 EncodeScratch& scratch,
                                                 std::vector<std::byte>& out);

/// Decodes a block in parts: `body` is what follows the id. `out` has more than part_elements_max
/// elements. Errors are corrupt.
[[nodiscard]] Result<void> decode_parts(Bytes body, std::span<float> out, DecodeScratch& scratch);

}  // namespace fl
