// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/core/compressor.hpp"

namespace fl::codec {

CompressorPlan Compressor::plan(const VectorToPlan&) const { return {}; }

CompressorPlan Compressor::plan_selected(const VectorToPlan&) const { return {}; }

std::size_t Compressor::bytes_max_of(const Layout::Tensor&, const Block& block) const {
  return bytes_max_in_parts(block.elements,
                            [this](std::size_t elements) { return block_bytes_max(elements); });
}

Result<bool> Compressor::encode_large(std::span<const float>, const Scan&, const Layout&,
                                      const Block&, std::uint64_t, const CompressorPlan&,
                                      EncodeScratch&, std::vector<std::byte>&) const {
  return false;
}

}  // namespace fl::codec
