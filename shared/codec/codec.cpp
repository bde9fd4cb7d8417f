#include "shared/codec/codec.hpp"

#include "kernels/kernels.hpp"
#include "shared/codec/payload.hpp"

#include <fmt/format.h>

namespace fl {

std::string Codec::canonical() const { return method_->spec() + (error_feedback_ ? "+ef" : ""); }

std::uint64_t Codec::payload_bytes_max(const Layout& layout, std::uint32_t block_elements) const {
  const BlockMap map(layout, block_elements);
  std::uint64_t bytes = payload_header_bytes + canonical().size();
  for (std::uint64_t i = 0; i < map.blocks(); ++i) {
    bytes += sizeof(std::uint32_t) + method_->block_bytes_max(map.at(i).elements);
  }
  return bytes;
}

Result<std::uint64_t> Codec::encode(const Layout& layout, std::span<const float> x,
                                    std::uint64_t seed, PayloadSink& out,
                                    std::uint32_t block_elements) const {
  FL_ASSERT(x.size() == layout.elements());
  const BlockMap map(layout, block_elements);
  std::vector<std::uint32_t> sizes(map.blocks());
  // The sizes are known only at the end; the prefix has its length already.
  std::uint64_t at = payload_prefix(map, canonical(), sizes).size();
  std::vector<std::byte> bytes;
  EncodeScratch scratch;
  for (std::uint64_t i = 0; i < map.blocks(); ++i) {
    const Block block = map.at(i);
    const auto values = x.subspan(block.flat, block.elements);
    const Scan scan = kernels().scan(values.data(), values.size());
    if (scan.first_bad != values.size()) {
      return Error(Errc::invalid_input,
                   fmt::format("encode: {} is {}", layout.describe(block.flat + scan.first_bad),
                               values[scan.first_bad]));
    }
    if (auto encoded = method_->encode(values, layout, block, seed, scratch, bytes); !encoded) {
      return encoded.error().at("encode");
    }
    FL_CHECK(out.write(at, bytes));
    sizes[i] = static_cast<std::uint32_t>(bytes.size());
    at += bytes.size();
  }
  FL_CHECK(out.write(0, payload_prefix(map, canonical(), sizes)));
  return at;
}

}  // namespace fl
