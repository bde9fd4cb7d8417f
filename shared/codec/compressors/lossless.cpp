// SPDX-License-Identifier: Apache-2.0
// "lossless": fp32 without loss, in fewer bytes. Exponents are entropy-coded (float_coder.hpp), and
// zeros are left out (large_block.cpp). A block that does not become shorter is written like that
// of "none".
#include "shared/codec/spec/table.hpp"

#include "shared/codec/entropy/float_coder.hpp"

#include <algorithm>

namespace fl::codec {

namespace {

class Lossless final : public Compressor {
 public:
  std::string spec() const override { return "lossless"; }
  std::size_t block_bytes_max(std::size_t elements) const override {
    return plain_->block_bytes_max(elements);
  }
  bool leaves_out_zeros() const override { return true; }
  Result<void> encode(std::span<const float> x, const Scan& scan, const Layout& layout,
                      const Block& block, std::uint64_t seed, const CompressorPlan&,
                      EncodeScratch& scratch, std::vector<std::byte>& out) const override {
    scratch.words.resize(std::max(scratch.words.size(), x.size()));
    const auto words = std::span(scratch.words).first(x.size());
    copy_bytes(std::as_writable_bytes(words).data(), std::as_bytes(x).data(), x.size_bytes());
    out.assign({static_cast<std::byte>(BlockFormat::fp32_coded)});
    if (append_floats<fp32_words>(std::span<const std::uint32_t>(words), scratch, out)) return {};
    return plain_->encode(x, scan, layout, block, seed, {}, scratch, out);
  }

 private:
  std::unique_ptr<const Compressor> plain_ = make_fp32();
};

}  // namespace

std::unique_ptr<const Compressor> make_lossless() { return std::make_unique<Lossless>(); }

const Compressor& dense_compressor() {
  static const Lossless lossless;
  return lossless;
}

CompressorResult parse_lossless(const SpecParts& parts) {
  FL_CHECK(check_plain(parts));
  return make_lossless();
}

Result<void> decode_lossless(BlockFormat, Bytes body, std::span<float> out,
                             DecodeScratch& scratch) {
  if (body.size() < 3 * out.size()) return Error(Errc::corrupt, "the mantissas are cut off");
  scratch.words.resize(std::max(scratch.words.size(), out.size()));
  const auto words = std::span(scratch.words).first(out.size());
  FL_CHECK(read_floats<fp32_words>(body, words, scratch));
  copy_bytes(std::as_writable_bytes(out).data(), std::as_bytes(words).data(), out.size_bytes());
  return {};
}

}  // namespace fl::codec
