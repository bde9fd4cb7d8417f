#include "shared/codec/core/compressor.hpp"

#include "shared/codec/blocks/large_block.hpp"
#include "shared/codec/blocks/sparse_block.hpp"

#include <fmt/format.h>

namespace fl {

CompressorPlan Compressor::plan(const VectorToPlan&) const { return {}; }

std::size_t Compressor::bytes_max_of(const Layout::Tensor&, const Block& block) const {
  return bytes_max_in_parts(block.elements,
                            [this](std::size_t elements) { return block_bytes_max(elements); });
}

Result<bool> Compressor::encode_large(std::span<const float>, const Scan&, const Layout&,
                                      const Block&, std::uint64_t, const CompressorPlan&,
                                      EncodeScratch&, std::vector<std::byte>&) const {
  return false;
}

Result<void> decode_block(Bytes bytes, std::span<float> out, DecodeScratch& scratch) {
  if (!bytes.empty()) {
    if (out.size() > part_elements_max) return decode_large_block(bytes, out, scratch);
    if (is_sparse(bytes)) return decode_sparse(bytes, out, scratch);
    if (static_cast<BlockFormat>(bytes[0]) == BlockFormat::countsketch)
      return decode_countsketch(bytes.subspan(1), out, scratch);
    if (static_cast<BlockFormat>(bytes[0]) == BlockFormat::countsketch_sum)
      return decode_countsketch_sum(bytes.subspan(1), out, scratch);
  }
  return decode_dense_block(bytes, out, scratch);
}

Result<void> decode_lossless_block(Bytes bytes, std::span<float> out, DecodeScratch& scratch) {
  const auto is_of = [&](BlockFormat id) {
    return !bytes.empty() && static_cast<BlockFormat>(bytes[0]) == id;
  };
  if (is_of(BlockFormat::fp32) || is_of(BlockFormat::fp32_coded))
    return decode_dense_block(bytes, out, scratch);
  return Error(Errc::corrupt, "what should be fp32 is of another method");
}

Result<void> decode_dense_block(Bytes bytes, std::span<float> out, DecodeScratch& scratch) {
  if (bytes.empty()) return Error(Errc::corrupt, "the block has no bytes");
  const Bytes body = bytes.subspan(1);
  switch (static_cast<BlockFormat>(bytes[0])) {
    case BlockFormat::fp32: return decode_fp32(body, out);
    case BlockFormat::fp32_coded: return decode_fp32_coded(body, out, scratch);
    case BlockFormat::fp16: return decode_fp16(body, false, out, scratch);
    case BlockFormat::fp16_coded: return decode_fp16(body, true, out, scratch);
    case BlockFormat::qsgd: return decode_qsgd(body, false, out, scratch);
    case BlockFormat::qsgd_rans: return decode_qsgd(body, true, out, scratch);
    case BlockFormat::bf16: return decode_bf16(body, false, out, scratch);
    case BlockFormat::bf16_coded: return decode_bf16(body, true, out, scratch);
    case BlockFormat::kbit: return decode_kbit(body, false, out, scratch);
    case BlockFormat::kbit_rans: return decode_kbit(body, true, out, scratch);
    case BlockFormat::terngrad: return decode_terngrad(body, false, out, scratch);
    case BlockFormat::terngrad_rans: return decode_terngrad(body, true, out, scratch);
    case BlockFormat::terngrad_runs: return decode_terngrad_runs(body, out, scratch);
    case BlockFormat::sign: return decode_sign(body, out);
    case BlockFormat::eden: return decode_eden(body, false, false, out, scratch);
    case BlockFormat::eden_rans: return decode_eden(body, false, true, out, scratch);
    case BlockFormat::eden_mixed: return decode_eden(body, true, false, out, scratch);
    case BlockFormat::eden_mixed_rans: return decode_eden(body, true, true, out, scratch);
    case BlockFormat::ecuq_dither: return decode_ecuq(body, EcuqMode::dither, out, scratch);
    case BlockFormat::ecuq_centroid: return decode_ecuq(body, EcuqMode::centroid, out, scratch);
    case BlockFormat::ecuq_dither_runs: return decode_ecuq_dither_runs(body, out, scratch);
    case BlockFormat::ecuq_centroid_runs: return decode_sparse(bytes, out, scratch);
    case BlockFormat::countsketch:
    case BlockFormat::countsketch_sum:
      return Error(Errc::corrupt, "a sketch inside of another block");
    case BlockFormat::sparse:
    case BlockFormat::randk: return Error(Errc::corrupt, "a sparse block inside of another");
    case BlockFormat::parts: return Error(Errc::corrupt, "parts of a block that needs none");
    case BlockFormat::powersgd:
    case BlockFormat::gradzip:
      return Error(Errc::corrupt, "a block of low rank without its tensor");
  }
  return Error(Errc::corrupt,
               fmt::format("method {} is not known", std::to_integer<int>(bytes[0])));
}

Result<void> check_body_bytes(Bytes body, std::size_t expected) {
  if (body.size() == expected) return {};
  return Error(Errc::corrupt,
               fmt::format("{} bytes after the method id, {} expected", body.size(), expected));
}

}  // namespace fl
