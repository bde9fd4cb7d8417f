// What the first byte of a block says: the format of the bytes behind it. Each row of the codecs'
// table (spec/table.cpp) lists the formats that its codec writes, with their decoders; from these
// rows comes `format_table`, by which blocks are decoded (blocks/decode.hpp has the list of ids).
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/codec/core/scratch.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace fl {

/// The id of a format, as it stands on the wire. Named here are those that more than one file must
/// know; the ids of a single codec are named in its file.
enum class BlockFormat : std::uint8_t {
  fp32 = 0,
  sparse = 16,
  randk = 17,
  powersgd = 28,
  gradzip = 29,
  parts = 33,
  fp32_coded = 36,
  countsketch_sum = 39,
};

/// The id of a block. The block is not empty.
[[nodiscard]] inline BlockFormat format_of(Bytes block) {
  return static_cast<BlockFormat>(block[0]);
}

/// How a format's blocks are decoded.
enum class FormatKind : std::uint8_t {
  unknown,   // No codec writes this id.
  dense,     // A value for every element, by FormatRow::decode.
  sketch,    // The same, but the block can't stand in a sparse block.
  sparse,    // Some elements and their indices, by FormatRow::read; the others are 0.
  low_rank,  // A piece of a matrix's factors, which PayloadReader decodes (low_rank_block.hpp).
  parts,     // A large block, part by part (large_block.hpp).
};

/// Ascending indices, and the value of each; all other elements are 0.
struct SelectedValues {
  std::span<const std::uint32_t> indices;
  std::span<const float> values;
};

/// Fills `out`, the elements of one block. `body` is the block without its id, and need not be
/// trusted. Errors are corrupt.
using DecodeBody = Result<void>(BlockFormat id, Bytes body, std::span<float> out,
                                DecodeScratch& scratch);
/// Reads the selected values of a sparse block of `elements` elements. They lie in `scratch`.
using ReadSelectedBody = Result<SelectedValues>(BlockFormat id, Bytes body, std::size_t elements,
                                                DecodeScratch& scratch);

/// One format of blocks.
struct FormatRow {
  BlockFormat id{};
  FormatKind kind = FormatKind::unknown;
  DecodeBody* decode = nullptr;      // Of dense formats and sketches.
  ReadSelectedBody* read = nullptr;  // Of sparse formats.
  bool may_be_large = false;         // Blocks may have more than part_elements_max elements.
  bool may_be_inside = false;        // Blocks may be the values of a sparse block.
  bool is_finite = false;            // Every decoded value is finite, whatever the bytes are.

  constexpr bool operator==(const FormatRow&) const = default;
};

/// Every format by its id. Made by the codecs' table (spec/table.cpp) when it is compiled.
using FormatTable = std::array<FormatRow, 256>;
extern const FormatTable format_table;

/// The row of a block's format. The block is not empty.
[[nodiscard]] inline const FormatRow& format_row(Bytes block) {
  return format_table[std::to_integer<std::size_t>(block[0])];
}

/// An error, corrupt, unless `body` has exactly as many bytes as expected.
[[nodiscard]] Result<void> check_body_bytes(Bytes body, std::size_t expected);

}  // namespace fl
