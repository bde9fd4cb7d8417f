// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/blocks/sparse_block.hpp"

#include "kernels/kernels.hpp"
#include "shared/codec/blocks/decode.hpp"
#include "shared/codec/blocks/large_block.hpp"
#include "shared/codec/entropy/index_coder.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl::codec {

namespace {

constexpr std::size_t sparse_head_bytes = 1 + sizeof(std::uint16_t);  // Format id and k.

/// Encodes the values as an inner block. If the quantizer fails, its error names an index among the
/// selected values. Then it runs again with every value at its place in the block, so that the
/// error names the right tensor[index].
Result<void> encode_values(const Selected& selected, const Scan& scan, const Compressor& quantizer,
                           const Layout& layout, const Block& block, std::uint64_t seed,
                           const CompressorPlan& plan, EncodeScratch& scratch,
                           std::vector<std::byte>& out) {
  Block inner = block;
  inner.elements = static_cast<std::uint32_t>(selected.values.size());
  auto encoded = quantizer.encode(selected.values, scan, layout, inner, seed, plan, scratch, out);
  if (encoded) return encoded;
  std::vector<float> placed(block.elements);
  for (std::size_t i = 0; i < selected.values.size(); ++i) {
    placed[selected.indices[i]] = selected.values[i];
  }
  FL_CHECK(encode_all_values(quantizer, placed, scan, layout, block, seed, plan, scratch, out));
  return encoded;
}

Error bad_selection(std::string_view what) { return {Errc::corrupt, std::string(what)}; }

/// Reads k, from k_min to elements - 1.
Result<std::size_t> read_k(Bytes body, std::size_t elements, std::size_t k_min) {
  if (body.size() < sizeof(std::uint16_t)) return bad_selection("the number of values is cut off");
  const std::size_t k = load<std::uint16_t>(body);
  if (k < k_min || k >= elements) {
    return bad_selection(fmt::format("{} of {} elements are selected", k, elements));
  }
  return k;
}

}  // namespace

std::size_t sparse_bytes_max(const Compressor& quantizer, std::size_t elements,
                             std::size_t selected) {
  const std::size_t indices = std::max(index_bytes_max(elements), sizeof(std::uint64_t));
  return sparse_head_bytes + indices + quantizer.block_bytes_max(selected);
}

Result<void> encode_selected(const Selected& selected, const Compressor& quantizer,
                             const Layout& layout, const Block& block, std::uint64_t seed,
                             const CompressorPlan& plan, EncodeScratch& scratch,
                             std::vector<std::byte>& out) {
  const std::span<const float> values = selected.values;
  FL_ASSERT(values.size() == selected.indices.size() &&
            values.size() <= sparse_values_max(block.elements));
  const Scan scan = kernels().scan(values.data(), values.size());
  if (scan.first_bad != values.size()) {
    return Error(Errc::invalid_input,
                 fmt::format("{} is {} after scaling for the elements that are not sent",
                             layout.describe(block.flat + selected.indices[scan.first_bad]),
                             values[scan.first_bad]));
  }
  std::vector<std::byte> inner;
  if (!values.empty()) {
    FL_CHECK(encode_values(selected, scan, quantizer, layout, block, seed, plan, scratch, inner));
  }
  if (values.size() == block.elements) {
    out = std::move(inner);
    return {};
  }
  out.resize(sparse_head_bytes);
  out[0] = static_cast<std::byte>(selected.key ? BlockFormat::randk : BlockFormat::sparse);
  store(out, 1, static_cast<std::uint16_t>(values.size()));
  if (selected.key) {
    out.resize(sparse_head_bytes + sizeof(std::uint64_t));
    store(out, sparse_head_bytes, *selected.key);
  } else if (!values.empty()) {
    append_indices(selected.indices, block.elements, scratch, out);
  }
  out.insert(out.end(), inner.begin(), inner.end());
  return {};
}

Result<SelectedValues> read_selected(Bytes block, std::size_t elements, DecodeScratch& scratch) {
  const FormatRow& row = format_row(block);
  return row.read(row.id, block.subspan(1), elements, scratch);
}

Result<SelectedValues> read_sparse(BlockFormat id, Bytes body, std::size_t elements,
                                   DecodeScratch& scratch) {
  const bool is_random = id == BlockFormat::randk;
  FL_TRY(const std::size_t k, read_k(body, elements, is_random ? 1 : 0));
  Bytes rest = body.subspan(sizeof(std::uint16_t));
  std::span<const std::uint32_t> indices;
  if (is_random) {
    if (rest.size() < sizeof(std::uint64_t)) return bad_selection("the key is cut off");
    indices = random_indices(load<std::uint64_t>(rest), elements, k, scratch.indices);
    rest = rest.subspan(sizeof(std::uint64_t));
  } else if (k == 0) {
    if (!rest.empty()) return bad_selection("no elements are selected, but bytes follow");
    return SelectedValues{};
  } else {
    scratch.indices.resize(std::max(scratch.indices.size(), k));
    const auto room = std::span(scratch.indices).first(k);
    const auto taken = read_indices(rest, elements, scratch, room);
    if (!taken) return bad_selection("the indices are damaged");
    indices = room;
    rest = rest.subspan(*taken);
  }
  scratch.values.resize(k);
  FL_CHECK(decode_inner_block(rest, scratch.values, scratch));
  return SelectedValues{.indices = indices, .values = scratch.values};
}

void place(const SelectedValues& selected, std::span<float> out) {
  std::ranges::fill(out, 0.0f);
  for (std::size_t i = 0; i < selected.indices.size(); ++i)
    out[selected.indices[i]] = selected.values[i];
}

Result<void> decode_sparse(Bytes block, std::span<float> out, DecodeScratch& scratch) {
  FL_TRY(const SelectedValues selected, read_selected(block, out.size(), scratch));
  place(selected, out);
  return {};
}

}  // namespace fl::codec
