// SPDX-License-Identifier: Apache-2.0
// Block formats. The first byte of a block is the id of its format and says how to decode the bytes
// that follow (blocks/decode.hpp lists all ids). Each row of the codec table (spec/table.cpp) lists
// the formats that its codec writes, with their decoders. `format_table` is made from these rows.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/codec/core/scratch.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace fl::codec {

/// The id of a block format on the wire. Only ids that several files need have a name here; an id
/// that one codec uses has its name in that codec's file.
enum class BlockFormat : std::uint8_t {
  fp32 = 0,
  sparse = 16,
  randk = 17,
  powersgd = 28,
  gradzip = 29,
  parts = 33,
  fp32_coded = 36,
  countsketch_sum = 39,
  lanes = 40,
  lanes_rans = 41,
  lanes_wide = 42,
};

/// The format id of a block. Requires: the block is not empty.
[[nodiscard]] inline BlockFormat format_of(Bytes block) {
  return static_cast<BlockFormat>(block[0]);
}

/// How the blocks of a format are decoded.
enum class FormatKind : std::uint8_t {
  unknown,   // No codec writes this id.
  dense,     // FormatRow::decode gives a value for every element.
  sketch,    // Like dense, but the block can't be inside a sparse block.
  sparse,    // FormatRow::read gives some elements and their indices; the others are 0.
  low_rank,  // A piece of a matrix's factors. PayloadReader decodes it (low_rank_block.hpp).
  parts,     // A large block that is coded in parts (large_block.hpp).
};

/// The selected elements of a block: ascending indices, and one value for each index. All other
/// elements are 0.
struct SelectedValues {
  std::span<const std::uint32_t> indices;
  std::span<const float> values;
};

/// Decodes one block: fills `out` with its elements. `body` is the block without its id; it need
/// not be trusted. Errors: corrupt.
using DecodeBody = Result<void>(BlockFormat id, Bytes body, std::span<float> out,
                                DecodeScratch& scratch);
/// Reads the selected values of a sparse block of `elements` elements. The result points into
/// `scratch`. `body` need not be trusted. Errors: corrupt.
using ReadSelectedBody = Result<SelectedValues>(BlockFormat id, Bytes body, std::size_t elements,
                                                DecodeScratch& scratch);

/// One block format.
struct FormatRow {
  BlockFormat id{};
  FormatKind kind = FormatKind::unknown;
  DecodeBody* decode = nullptr;      // For dense formats and sketches.
  ReadSelectedBody* read = nullptr;  // For sparse formats.
  bool may_be_large = false;         // A block may have more than part_elements_max elements.
  bool may_be_inside = false;        // A block may hold the values of a sparse block.
  bool is_finite = false;            // Any bytes decode to finite values.

  constexpr bool operator==(const FormatRow&) const = default;
};

/// All block formats, indexed by id. The compiler makes it from the codec table (spec/table.cpp).
using FormatTable = std::array<FormatRow, 256>;
extern const FormatTable format_table;

/// The row of a block's format. Requires: the block is not empty.
[[nodiscard]] inline const FormatRow& format_row(Bytes block) {
  return format_table[std::to_integer<std::size_t>(block[0])];
}

/// Errors: corrupt, unless `body` has exactly `expected` bytes.
[[nodiscard]] Result<void> check_body_bytes(Bytes body, std::size_t expected);

}  // namespace fl::codec
