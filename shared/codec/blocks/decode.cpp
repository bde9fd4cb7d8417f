// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/blocks/decode.hpp"

#include "shared/codec/blocks/large_block.hpp"
#include "shared/codec/blocks/sparse_block.hpp"
#include "shared/codec/core/block_map.hpp"

#include <fmt/format.h>

namespace fl::codec {

namespace {

Error no_bytes() { return {Errc::corrupt, "the block has no bytes"}; }

/// The error for a block whose format is not allowed at its place.
Error out_of_place(const FormatRow& row, Bytes bytes, std::size_t elements) {
  const auto error = [](std::string what) { return Error(Errc::corrupt, std::move(what)); };
  switch (row.kind) {
    case FormatKind::low_rank: return error("a block of low rank without its tensor");
    case FormatKind::parts:
      return error(fmt::format("a block of only {} elements is coded in parts", elements));
    case FormatKind::sparse: return error("a sparse block inside another block");
    case FormatKind::sketch: return error("a sketch inside another block");
    case FormatKind::dense:
    case FormatKind::unknown: break;
  }
  return error(fmt::format("block format {} is not known", std::to_integer<int>(bytes[0])));
}

/// Decodes a block whose format is allowed at its place.
Result<void> decode_by(const FormatRow& row, Bytes bytes, std::span<float> out,
                       DecodeScratch& scratch) {
  if (row.decode != nullptr) return row.decode(row.id, bytes.subspan(1), out, scratch);
  if (row.read != nullptr) return decode_sparse(bytes, out, scratch);
  if (row.kind == FormatKind::parts && out.size() > part_elements_max)
    return decode_parts(bytes.subspan(1), out, scratch);
  return out_of_place(row, bytes, out.size());
}

}  // namespace

Result<void> decode_block(Bytes bytes, std::span<float> out, DecodeScratch& scratch) {
  if (bytes.empty()) return no_bytes();
  const FormatRow& row = format_row(bytes);
  if (out.size() > part_elements_max && !row.may_be_large && row.kind != FormatKind::unknown) {
    return Error(Errc::corrupt,
                 fmt::format("block format {} has at most {} elements, not {}",
                             std::to_integer<int>(bytes[0]), part_elements_max, out.size()));
  }
  return decode_by(row, bytes, out, scratch);
}

Result<void> decode_inner_block(Bytes bytes, std::span<float> out, DecodeScratch& scratch) {
  if (bytes.empty()) return no_bytes();
  const FormatRow& row = format_row(bytes);
  if (!row.may_be_inside) return out_of_place(row, bytes, out.size());
  return decode_by(row, bytes, out, scratch);
}

Result<void> decode_lossless_block(Bytes bytes, std::span<float> out, DecodeScratch& scratch) {
  if (bytes.empty()) return no_bytes();
  const BlockFormat id = format_of(bytes);
  if (id == BlockFormat::fp32 || id == BlockFormat::fp32_coded)
    return decode_by(format_row(bytes), bytes, out, scratch);
  return Error(Errc::corrupt, fmt::format("block format {} where fp32 is expected",
                                          std::to_integer<int>(bytes[0])));
}

}  // namespace fl::codec
