#include "shared/codec/blocks/half_block.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace fl {

namespace {

class SixteenBitMethod final : public Compressor {
 public:
  explicit SixteenBitMethod(const SixteenBits& format) : format_(format) {}

  std::string spec() const override { return std::string(format_.name); }
  bool leaves_out_zeros() const override { return true; }
  std::size_t block_bytes_max(std::size_t elements) const override {
    return 1 + elements * sizeof(std::uint16_t);
  }
  Result<void> encode(std::span<const float> x, const Scan& scan, const Layout& layout,
                      const Block& block, std::uint64_t, const CompressorPlan&,
                      EncodeScratch& scratch, std::vector<std::byte>& out) const override {
    if (scan.max_abs > format_.max) {
      const auto big = std::ranges::find_if(x, [&](float v) { return std::fabs(v) > format_.max; });
      const auto index = static_cast<std::uint64_t>(big - x.begin());
      return Error(
          Errc::invalid_input,
          fmt::format("{} is {}, and {} ends at {}: use another codec",
                      layout.describe(block.flat + index), *big, format_.name, format_.max));
    }
    std::vector<std::uint16_t> halves(x.size());  // The block's own bytes begin at an odd address.
    (kernels().*format_.to)(x.data(), x.size(), halves.data());
    out.assign({static_cast<std::byte>(format_.coded_id)});
    if (format_.append(halves, scratch, out)) return {};
    out.resize(block_bytes_max(x.size()));
    out[0] = static_cast<std::byte>(format_.id);
    copy_bytes(out.data() + 1, std::as_bytes(std::span(halves)).data(), out.size() - 1);
    return {};
  }

 private:
  const SixteenBits& format_;
};

}  // namespace

std::unique_ptr<const Compressor> make_sixteen_bits(const SixteenBits& format) {
  return std::make_unique<SixteenBitMethod>(format);
}

Result<void> decode_sixteen_bits(const SixteenBits& format, Bytes body, bool is_coded,
                                 std::span<float> out, DecodeScratch& scratch) {
  scratch.halves.resize(std::max(scratch.halves.size(), out.size()));
  if (is_coded) {
    FL_CHECK(format.read(body, std::span(scratch.halves).first(out.size()), scratch));
  } else {
    FL_CHECK(check_body_bytes(body, out.size() * sizeof(std::uint16_t)));
    copy_bytes(std::as_writable_bytes(std::span(scratch.halves)).data(), body.data(), body.size());
  }
  (kernels().*format.from)(scratch.halves.data(), out.size(), out.data());
  return {};
}

}  // namespace fl
