// SPDX-License-Identifier: Apache-2.0
#include "shared/base/io/bytes.hpp"
#include "shared/codec/spec/table.hpp"

namespace fl::codec {

namespace {

class Fp32 final : public Compressor {
 public:
  std::string spec() const override { return "none"; }
  std::size_t block_bytes_max(std::size_t elements) const override {
    return 1 + elements * sizeof(float);
  }
  Result<void> encode(std::span<const float> x, const Scan&, const Layout&, const Block&,
                      std::uint64_t, const CompressorPlan&, EncodeScratch&,
                      std::vector<std::byte>& out) const override {
    out.resize(block_bytes_max(x.size()));
    out[0] = static_cast<std::byte>(BlockFormat::fp32);
    copy_bytes(out.data() + 1, std::as_bytes(x).data(), x.size_bytes());
    return {};
  }
};

}  // namespace

std::unique_ptr<const Compressor> make_fp32() { return std::make_unique<Fp32>(); }

CompressorResult parse_none(const SpecParts& parts) {
  FL_CHECK(check_plain(parts));
  return make_fp32();
}

Result<void> decode_fp32(BlockFormat, Bytes body, std::span<float> out, DecodeScratch&) {
  FL_CHECK(check_body_bytes(body, out.size_bytes()));
  copy_bytes(std::as_writable_bytes(out).data(), body.data(), body.size());
  return {};
}

}  // namespace fl::codec
