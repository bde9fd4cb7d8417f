#include "shared/codec/method.hpp"

#include "kernels/kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace fl {

namespace {

constexpr float half_max = 65504.0f;

class Fp16 final : public Method {
 public:
  std::string spec() const override { return "fp16"; }
  std::size_t block_bytes_max(std::size_t elements) const override {
    return 1 + elements * sizeof(std::uint16_t);
  }
  Result<void> encode(std::span<const float> x, const Layout& layout, const Block& block,
                      std::uint64_t, EncodeScratch&, std::vector<std::byte>& out) const override {
    if (kernels().scan(x.data(), x.size()).max_abs > half_max) {
      const auto big = std::ranges::find_if(x, [](float v) { return std::fabs(v) > half_max; });
      const auto index = static_cast<std::uint64_t>(big - x.begin());
      return Error(Errc::invalid_input,
                   fmt::format("{} is {}, and fp16 ends at {}: use another codec",
                               layout.describe(block.flat + index), *big, half_max));
    }
    out.resize(block_bytes_max(x.size()));
    out[0] = static_cast<std::byte>(MethodId::fp16);
    std::vector<std::uint16_t> halves(x.size());  // The block's own bytes begin at an odd address.
    kernels().to_half(x.data(), x.size(), halves.data());
    std::memcpy(out.data() + 1, halves.data(), out.size() - 1);
    return {};
  }
};

}  // namespace

std::unique_ptr<const Method> make_fp16() { return std::make_unique<Fp16>(); }

Result<void> decode_fp16(Bytes body, std::span<float> out, DecodeScratch& scratch) {
  FL_CHECK(check_body_bytes(body, out.size() * sizeof(std::uint16_t)));
  scratch.halves.resize(std::max(scratch.halves.size(), out.size()));
  std::memcpy(scratch.halves.data(), body.data(), body.size());
  kernels().from_half(scratch.halves.data(), out.size(), out.data());
  return {};
}

}  // namespace fl
