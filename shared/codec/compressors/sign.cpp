// SPDX-License-Identifier: Apache-2.0
// "sign": one bit for each value, its sign. It decodes to the sign times the mean magnitude of the
// block. A zero gets a random sign: weights that no client changes, such as those of a pixel that
// is always black, would otherwise all move in the same direction. Seide 2014, "1-bit SGD";
// Bernstein 2018, "signSGD"; the scale, here for each block, is that of Karimireddy 2019,
// EF-signSGD, section 4. The result is biased, so use sign+ef; the last paper proves that it
// converges.
#include "shared/codec/spec/table.hpp"

#include "kernels/kernels.hpp"
#include "shared/codec/core/block_key.hpp"
#include "shared/codec/device/device_levels.hpp"
#include "shared/codec/entropy/quantized_levels.hpp"

#include <algorithm>
#include <limits>
#include <optional>

namespace fl::codec {

namespace {

constexpr BlockFormat sign_bits{7};

std::size_t body_bytes(std::size_t elements) { return sizeof(float) + (elements + 7) / 8; }

class Sign final : public Compressor, public LevelCoder {
 public:
  std::string spec() const override { return "sign"; }
  std::size_t block_bytes_max(std::size_t elements) const override {
    return 1 + body_bytes(elements);
  }
  Result<void> encode(std::span<const float> x, const Scan&, const Layout& layout,
                      const Block& block, std::uint64_t seed, const CompressorPlan&,
                      EncodeScratch& scratch, std::vector<std::byte>& out) const override {
    out.resize(block_bytes_max(x.size()));
    out[0] = static_cast<std::byte>(sign_bits);
    const MutableBytes body = MutableBytes(out).subspan(1);
    const double sum = kernels().pack_signs(
        x.data(), x.size(), reinterpret_cast<std::uint8_t*>(body.data() + sizeof(float)));
    const auto scale = static_cast<float>(sum / static_cast<double>(x.size()));
    FL_CHECK(check_scale(scale, layout, block.flat, "sign"));
    store(body, 0, scale);
    if (sum > 0 && std::ranges::count(x, 0.0f) > 0)
      draw_signs_of_zeros(x, block_key(seed, KeyFamily::quantizer, block), scratch.sketch.words,
                          body.subspan(sizeof scale));
    return {};
  }

  const LevelCoder* level_coder() const override { return this; }

  std::size_t elements_min() const override { return 1; }
  // A CPU reads the vector only once too, so a copy to the device does not pay.
  bool is_worth_a_copy() const override { return false; }
  bool is_worth_small_blocks() const override { return false; }

  std::optional<LevelBlock> level_block(const Block& block, std::uint64_t,
                                        const CompressorPlan&) const override {
    return LevelBlock{.begin = block.flat,
                      .elements = block.elements,
                      .rounding = LevelRounding::sign,
                      .most = std::numeric_limits<float>::max()};
  }

  LevelCode level_code(const LevelBlock& block, const LevelTally& tally,
                       std::vector<std::byte>& out) const override {
    const auto scale = static_cast<float>(tally.magnitudes / block.elements);
    if (tally.is_levelled == 0 || scale > scale_max) return {};
    // Blocks with zeros are for the CPU, which draws their signs. Level 1 counts the zeros.
    if (count_levels(block, tally)[device_levels_max + 1] > 0) return {};
    out.resize(1 + sizeof scale);
    out[0] = static_cast<std::byte>(sign_bits);
    store(MutableBytes(out), 1, scale);
    return packed_levels(block.elements);
  }

 private:
  static void draw_signs_of_zeros(std::span<const float> x, std::uint64_t key,
                                  std::vector<std::uint32_t>& words, MutableBytes signs) {
    words.resize((x.size() + 31) / 32);
    kernels().random_words(key, 0, words.data(), words.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (x[i] == 0) signs[i / 8] |= static_cast<std::byte>((words[i / 32] >> i % 32 & 1) << i % 8);
    }
  }
};

}  // namespace

CompressorResult parse_sign(const SpecParts& parts) {
  FL_CHECK(check_plain(parts));
  return std::make_unique<Sign>();
}

Result<void> decode_sign(BlockFormat, Bytes body, std::span<float> out, DecodeScratch&) {
  FL_CHECK(check_body_bytes(body, body_bytes(out.size())));
  FL_TRY(const float scale, read_scale(body, 0));
  const auto* signs = reinterpret_cast<const std::uint8_t*>(body.data() + sizeof(float));
  if (out.size() % 8 != 0 && signs[out.size() / 8] >> out.size() % 8 != 0) {
    return Error(Errc::corrupt, "bits are set after the last sign");
  }
  kernels().unpack_signs(signs, out.size(), scale, out.data());
  return {};
}

}  // namespace fl::codec
