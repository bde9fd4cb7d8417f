// SPDX-License-Identifier: Apache-2.0
// "kbit": uniform quantization to B bits with stochastic rounding, which is unbiased (Suresh 2017,
// section 2.2). There are 2^B - 1 levels, -S to S with S = 2^(B-1) - 1. With mode=symmetric they
// are centred on 0. With mode=affine (Jacob 2018, section 2.1) they are centred on the middle
// between the smallest and the largest value, so that no level is wasted if all values have the
// same sign.
//
// With error feedback it rounds to the nearest level (quantized_levels.hpp). With stochastic
// rounding and 2 bits the squared error for Gaussian values would be 2.5 times their sum of
// squares, and the residual would grow for ever.
//
// A scale is for a channel (a slice of the tensor along its first dimension) or for the whole
// tensor. Each block has its own scales for the parts that it holds. A channel of fewer than 8
// values, such as an element of a bias, is not worth a scale; such a tensor is one channel.
//
// The bytes: u8 B; u8 1 if affine, else 0; u16 elements until the first channel ends - 1; u16
// elements of each other channel - 1; for each channel the middle (only if affine) and the scale,
// as binary32; then the levels.
#include "shared/codec/spec/table.hpp"

#include "kernels/generic/pack.hpp"
#include "kernels/kernels.hpp"
#include "shared/codec/device/device_levels.hpp"
#include "shared/codec/entropy/quantized_levels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace fl::codec {

namespace {

constexpr BlockFormat kbit_packed{5};
constexpr BlockFormat kbit_rans{8};

enum class KbitScale { tensor, channel };
enum class KbitMode { symmetric, affine };

struct KbitSettings {
  int bits;  // B, 2 to 8.
  KbitScale scale = KbitScale::tensor;
  KbitMode mode = KbitMode::symmetric;
  bool has_feedback = false;  // Whether to round to the nearest instead of stochastically.
};

constexpr std::size_t kbit_settings_bytes = 6;
constexpr std::uint64_t channel_elements_min = 8;

std::int32_t levels_of(int bits) { return (1 << (bits - 1)) - 1; }

/// The bytes of a channel's scale, and of its middle if affine.
std::size_t scale_bytes(bool is_affine) { return (is_affine ? 2 : 1) * sizeof(float); }

/// How a block is cut into channels. The first channel may begin before the block.
struct Channels {
  std::size_t first;   // Elements of the first channel in this block.
  std::size_t others;  // Elements of each other channel; the last may be cut off.

  [[nodiscard]] std::size_t count(std::size_t elements) const {
    return 1 + (elements - std::min(elements, first) + others - 1) / others;
  }
  /// The end of the channel that begins at `begin`.
  [[nodiscard]] std::size_t end(std::size_t begin, std::size_t elements) const {
    return std::min(elements, begin == 0 ? first : begin + others);
  }
};

Channels channels_of(const Layout& layout, const Block& block, KbitScale scale) {
  const Layout::Tensor& tensor = layout.tensors()[block.tensor];
  std::uint64_t channel = tensor.elements;
  if (scale == KbitScale::channel && !tensor.shape.empty()) {
    const std::uint64_t slice = tensor.elements / static_cast<std::uint64_t>(tensor.shape.front());
    if (slice >= channel_elements_min) channel = slice;
  }
  const std::uint64_t elements = block.elements;
  return {.first = std::min(elements, channel - block.first % channel),
          .others = std::min(elements, channel)};
}

class Kbit final : public Compressor, public LevelCoder {
 public:
  explicit Kbit(const KbitSettings& settings) : settings_(settings) {
    FL_ASSERT(settings.bits >= 2 && settings.bits <= 8);
  }

  std::string spec() const override {
    return fmt::format("kbit:{}{}{}", settings_.bits,
                       settings_.scale == KbitScale::channel ? ",scale=channel" : "",
                       is_affine() ? ",mode=affine" : "");
  }

  bool needs_places() const override { return settings_.scale == KbitScale::channel; }

  std::size_t block_bytes_max(std::size_t elements) const override {
    const std::size_t channels = settings_.scale == KbitScale::tensor
                                     ? 1
                                     : Channels{1, channel_elements_min}.count(elements);
    return 1 + kbit_settings_bytes + channels * scale_bytes(is_affine()) +
           packed_bytes(elements, levels_of(settings_.bits));
  }

  Result<void> encode(std::span<const float> x, const Scan& scan, const Layout& layout,
                      const Block& block, std::uint64_t seed, const CompressorPlan&,
                      EncodeScratch& scratch, std::vector<std::byte>& out) const override {
    const Channels channels = channels_of(layout, block, settings_.scale);
    const MutableBytes body = begin_block(channels, x.size(), out);
    const std::int32_t top = levels_of(settings_.bits);
    const auto levels = levels_in(scratch.levels, x.size());
    std::vector<float> moved;
    std::size_t scale_at = kbit_settings_bytes;
    for (std::size_t begin = 0; begin < x.size(); begin = channels.end(begin, x.size())) {
      auto channel = x.subspan(begin, channels.end(begin, x.size()) - begin);
      const bool is_all = channel.size() == x.size();
      float scale = is_all ? scan.max_abs : kernels().scan(channel.data(), channel.size()).max_abs;
      FL_CHECK(check_scale(scale, layout, block.flat + begin, "kbit"));
      if (is_affine()) {
        const Range range = kernels().range(channel.data(), channel.size());
        const float middle = 0.5f * range.min + 0.5f * range.max;
        // The largest |x - middle| is at one of the ends, because rounding is monotonic.
        scale = std::max(range.max - middle, middle - range.min);
        moved.assign(channel.begin(), channel.end());
        for (float& v : moved) v -= middle;
        channel = moved;
        store(body, scale_at, middle);
        scale_at += sizeof middle;
      }
      if (settings_.has_feedback) {
        scale = nearest_run(channel, scale, top, levels.data() + begin);
      } else {
        quantize_run(channel, scale, top, block, begin, seed, levels.data() + begin);
      }
      store(body, scale_at, scale);
      scale_at += sizeof scale;
    }
    const bool is_rans = append_levels(levels, top, scratch.coded, out);
    out[0] = static_cast<std::byte>(is_rans ? kbit_rans : kbit_packed);
    return {};
  }

  const LevelCoder* level_coder() const override {
    return settings_.scale == KbitScale::tensor && !is_affine() ? this : nullptr;
  }

  std::optional<LevelBlock> level_block(const Block& block, std::uint64_t seed,
                                        const CompressorPlan&) const override {
    const std::int32_t levels = levels_of(settings_.bits);
    return settings_.has_feedback ? fitted_block(block, levels, block.elements)
                                  : stochastic_block(block, levels, block.elements, seed);
  }

  LevelCode level_code(const LevelBlock& block, const LevelTally& tally,
                       std::vector<std::byte>& out) const override {
    if (tally.is_levelled == 0) return {};
    const Channels whole = {.first = block.elements, .others = block.elements};
    store(begin_block(whole, block.elements, out), kbit_settings_bytes, tally.scales[0]);
    out[0] = static_cast<std::byte>(kbit_rans);
    const std::int32_t levels = levels_of(settings_.bits);
    return append_level_tables(block, tally, levels, 0, packed_bytes(block.elements, levels), out);
  }

 private:
  /// Writes the settings and returns the block's body, with room for the scales. The id and the
  /// scales are not written yet.
  MutableBytes begin_block(const Channels& channels, std::size_t elements,
                           std::vector<std::byte>& out) const {
    out.resize(1 + kbit_settings_bytes + channels.count(elements) * scale_bytes(is_affine()));
    const MutableBytes body = MutableBytes(out).subspan(1);
    store(body, 0, static_cast<std::uint8_t>(settings_.bits));
    store(body, 1, static_cast<std::uint8_t>(is_affine()));
    store(body, 2, static_cast<std::uint16_t>(channels.first - 1));
    store(body, 4, static_cast<std::uint16_t>(channels.others - 1));
    return body;
  }

  [[nodiscard]] bool is_affine() const { return settings_.mode == KbitMode::affine; }

  KbitSettings settings_;
};

}  // namespace

CompressorResult parse_kbit(const SpecParts& parts) {
  FL_CHECK(check_has_argument(parts, "kbit needs a number of bits here, such as kbit:8"));
  KbitSettings settings{};
  FL_TRY(settings.bits, parse_whole_argument(parts, "the bits of kbit", 2, 8));
  for (const auto& [key, value] : parts.settings) {
    if (key == "scale") {
      if (value != "tensor" && value != "channel") {
        return wrong(parts.whole, value, "scale must be tensor or channel");
      }
      settings.scale = value == "channel" ? KbitScale::channel : KbitScale::tensor;
    } else if (key == "mode") {
      if (value != "symmetric" && value != "affine") {
        return wrong(parts.whole, value, "mode must be symmetric or affine");
      }
      settings.mode = value == "affine" ? KbitMode::affine : KbitMode::symmetric;
    } else {
      return wrong(parts.whole, key, "kbit has no such setting; its own are scale and mode");
    }
  }
  settings.has_feedback = parts.error_feedback;
  return std::make_unique<Kbit>(settings);
}

Result<void> decode_kbit(BlockFormat id, Bytes body, std::span<float> out, DecodeScratch& scratch) {
  if (body.size() < kbit_settings_bytes) return Error(Errc::corrupt, "kbit settings are cut off");
  const int bits = load<std::uint8_t>(body, 0);
  const int mode = load<std::uint8_t>(body, 1);
  if (bits < 2 || bits > 8 || mode > 1) {
    return Error(Errc::corrupt,
                 fmt::format("kbit with {} bits in mode {} is not allowed", bits, mode));
  }
  const bool is_affine = mode == 1;
  const Channels channels = {.first = load<std::uint16_t>(body, 2) + std::size_t{1},
                             .others = load<std::uint16_t>(body, 4) + std::size_t{1}};
  const std::size_t codes_at =
      kbit_settings_bytes + channels.count(out.size()) * scale_bytes(is_affine);
  if (body.size() < codes_at) return Error(Errc::corrupt, "kbit scales are cut off");
  const std::int32_t top = levels_of(bits);
  FL_TRY(const auto levels,
         read_levels(body.subspan(codes_at), id == kbit_rans, top, out.size(), scratch));
  std::size_t scale_at = kbit_settings_bytes;
  for (std::size_t begin = 0; begin < out.size(); begin = channels.end(begin, out.size())) {
    const auto channel = out.subspan(begin, channels.end(begin, out.size()) - begin);
    float middle = 0;
    if (is_affine) {
      middle = load<float>(body, scale_at);
      scale_at += sizeof middle;
    }
    FL_TRY(const float scale, read_scale(body, scale_at));
    scale_at += sizeof scale;
    kernels().dequantize(levels.data() + begin, channel.size(), scale / static_cast<float>(top),
                         channel.data());
    if (!is_affine) continue;
    for (float& v : channel) v += middle;
  }
  return {};
}

}  // namespace fl::codec
