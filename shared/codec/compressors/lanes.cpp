// SPDX-License-Identifier: Apache-2.0
// "lanes": quantization with one step for each tensor that all clients of a round share. So their
// levels can be added up as integers, also by a server that can't read a single one of them
// (secure aggregation): Bonawitz 2019, "Federated learning with autotuned communication-efficient
// secure aggregation", section 3.
//
// Without error feedback the dither is subtractive (Ziv 1985; Zamir and Feder 1992): a level is
// x / step + u, rounded, and decodes to (level - u) * step, with u in (-1/2, 1/2) drawn by the
// block's key. So the error does not depend on the value, and its variance is step^2 / 12, half of
// that of stochastic rounding. With error feedback a level is the nearest one.
//
// u is a multiple of 2^(B-20), and a step has a mantissa of 5 bits. So (level - u) * step has at
// most 24 bits: every decoded value is exact in fp32, and so are sums of values with the same step
// (sum_range.hpp), as long as the weights sum to at most 2^30. What comes of a round then does not
// depend on whether the values were added, or the levels and the dithers apart.
//
// The steps come from the round before (server/sums/lane_steps.hpp). A tensor of which nothing is
// known yet is coded in multiples of 2^-24, from -8 to 8. Vectors that are not added to others
// (steps down, gradients of ranks) get steps from their own values.
#include "shared/codec/spec/table.hpp"

#include "kernels/generic/pack.hpp"
#include "kernels/kernels.hpp"
#include "shared/codec/blocks/decode.hpp"
#include "shared/codec/blocks/lane_block.hpp"
#include "shared/codec/core/block_key.hpp"
#include "shared/codec/entropy/quantized_levels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fl::codec {

namespace {

/// Adding and subtracting it rounds an fp32 value below 2^22 to the nearest integer, as
/// std::nearbyint() does, in a loop that compilers make fast.
constexpr float to_integer = 0x1.8p23f;

std::span<const std::uint32_t> dither_words(std::uint64_t key, std::size_t n,
                                            std::vector<std::uint32_t>& room) {
  room.resize(std::max(room.size(), n));
  kernels().random_words(key, 0, room.data(), n);
  return std::span(room).first(n);
}

/// A block without a step.
Result<void> encode_wide(std::span<const float> x, const Layout& layout, const Block& block,
                         std::uint64_t seed, EncodeScratch& scratch, std::vector<std::byte>& out) {
  std::vector<float> rounded(x.size());
  round_to_wide(x, rounded);
  const Scan scan = kernels().scan(rounded.data(), rounded.size());
  FL_CHECK(dense_compressor().encode(rounded, scan, layout, block, seed, {}, scratch, out));
  const double squares = scan.sum_squares / lane_squares_unit(0, LaneStep());
  const auto tally =
      static_cast<std::uint64_t>(std::min(squares, static_cast<double>(wide_squares_max)));
  out.insert(out.begin(), 1 + sizeof tally, static_cast<std::byte>(BlockFormat::lanes_wide));
  store(MutableBytes(out), 1, tally);
  return {};
}

/// For tensors that are sent dense although all else is lanes.
class Wide final : public Compressor {
 public:
  std::string spec() const override { return "lossless"; }
  std::size_t block_bytes_max(std::size_t elements) const override {
    return 1 + sizeof(std::uint64_t) + dense_compressor().block_bytes_max(elements);
  }
  Result<void> encode(std::span<const float> x, const Scan&, const Layout& layout,
                      const Block& block, std::uint64_t seed, const CompressorPlan&,
                      EncodeScratch& scratch, std::vector<std::byte>& out) const override {
    return encode_wide(x, layout, block, seed, scratch, out);
  }
};

class LanesCodec final : public Compressor {
 public:
  LanesCodec(int bits, bool has_feedback) : bits_(bits), has_feedback_(has_feedback) {
    FL_ASSERT(bits >= lane_bits_min && bits <= lane_bits_max);
  }

  std::string spec() const override { return fmt::format("lanes:{}", bits_); }
  std::size_t block_bytes_max(std::size_t elements) const override {
    const std::size_t wide =
        1 + sizeof(std::uint64_t) + dense_compressor().block_bytes_max(elements);
    return std::max(wide, lane_head_bytes_max + packed_bytes(elements, lane_levels(bits_)));
  }
  int lane_bits() const override { return bits_; }

  CompressorPlan plan(const VectorToPlan& vector) const override {
    if (vector.inputs.lane_steps) return plan_selected(vector);
    LaneSteps steps(vector.layout->tensors().size());
    for (const std::uint32_t t : vector.tensors) {
      const auto values = vector.values_of(t);
      steps[t] = own_step(kernels().scan(values.data(), values.size()), values.size());
    }
    return {.lane_steps = std::make_shared<const LaneSteps>(std::move(steps))};
  }
  CompressorPlan plan_selected(const VectorToPlan& vector) const override {
    FL_ASSERT(!vector.inputs.lane_steps ||
              vector.inputs.lane_steps->size() == vector.layout->tensors().size());
    return {.lane_steps = vector.inputs.lane_steps};
  }

  Result<void> encode(std::span<const float> x, const Scan& scan, const Layout& layout,
                      const Block& block, std::uint64_t seed, const CompressorPlan& plan,
                      EncodeScratch& scratch, std::vector<std::byte>& out) const override {
    const LaneStep step =
        plan.lane_steps ? (*plan.lane_steps)[block.tensor] : own_step(scan, x.size());
    if (!step.is_set()) return encode_wide(x, layout, block, seed, scratch, out);
    LaneHead head{.bits = bits_, .step = step, .tally = {}, .has_dither = !has_feedback_};
    if (head.has_dither) head.key = block_key(seed, KeyFamily::quantizer, block);
    const auto levels = levels_in(scratch.levels, x.size());
    scratch.scaled.resize(std::max(scratch.scaled.size(), x.size()));
    const auto scaled = std::span(scratch.scaled).first(x.size());
    head.tally = scale(x, step, scaled);
    if (head.has_dither) add_dither(head.key, scratch, scaled);
    round(scaled, levels);
    begin_lane_block(head, out);
    if (append_levels(levels, lane_levels(bits_), scratch.coded, out))
      out[0] = static_cast<std::byte>(BlockFormat::lanes_rans);
    return {};
  }

 private:
  /// The step for values whose sum of squares is known.
  [[nodiscard]] LaneStep own_step(const Scan& scan, std::size_t count) const {
    if (scan.sum_squares == 0) return {};
    return fitting_step(bits_, std::sqrt(scan.sum_squares / static_cast<double>(count)));
  }

  /// out = x / step, at most S + 1/2. Returns the tally without its number of values.
  LaneTally scale(std::span<const float> x, LaneStep step, std::span<float> out) const {
    const auto factor = static_cast<float>(1 / step.value());
    const float most = static_cast<float>(lane_levels(bits_)) + 0.5F;
    const float half = static_cast<float>(lane_levels(bits_)) / 2;
    std::uint32_t clipped = 0;
    std::uint32_t large = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float scaled = x[i] * factor;
      clipped += std::fabs(scaled) > most ? 1 : 0;
      large += std::fabs(scaled) > half ? 1 : 0;
      out[i] = std::clamp(scaled, -most, most);
    }
    const double squares = kernels().scan(out.data(), out.size()).sum_squares;
    return {.values = 0,
            .squares = static_cast<std::uint64_t>(std::ldexp(squares, 2 * (10 - bits_))),
            .clipped = clipped,
            .large = large};
  }

  void add_dither(std::uint64_t key, EncodeScratch& scratch, std::span<float> scaled) const {
    const auto words = dither_words(key, scaled.size(), scratch.words);
    const float unit = std::ldexp(1.0F, -lane_dither_bits(bits_) - 1);
    for (std::size_t i = 0; i < scaled.size(); ++i)
      scaled[i] += static_cast<float>(lane_dither_of(words[i], bits_)) * unit;
  }

  /// The nearest levels.
  void round(std::span<const float> scaled, std::span<std::int16_t> levels) const {
    const auto last = static_cast<float>(lane_levels(bits_));
    for (std::size_t i = 0; i < scaled.size(); ++i) {
      const float rounded = (std::clamp(scaled[i], -last, last) + to_integer) - to_integer;
      levels[i] = static_cast<std::int16_t>(rounded);
    }
  }

  int bits_;
  bool has_feedback_;
};

}  // namespace

const Compressor& wide_compressor() {
  static const Wide wide;
  return wide;
}

CompressorResult parse_lanes(const SpecParts& parts) {
  FL_CHECK(check_has_argument(parts, "lanes needs a number of bits here, such as lanes:8"));
  FL_CHECK(check_no_settings(parts));
  FL_TRY(const std::int32_t bits, parse_number(parts.whole, *parts.argument, "the bits of lanes",
                                               lane_bits_min, lane_bits_max));
  return std::make_unique<LanesCodec>(bits, parts.error_feedback);
}

Result<void> decode_lanes(BlockFormat id, Bytes body, std::span<float> out,
                          DecodeScratch& scratch) {
  if (id == BlockFormat::lanes_wide) {
    if (body.size() < sizeof(std::uint64_t)) return Error(Errc::corrupt, "the squares are cut off");
    return decode_lossless_block(body.subspan(sizeof(std::uint64_t)), out, scratch);
  }
  FL_TRY(const ReadLaneHead read, read_lane_head(body));
  const LaneHead& head = read.head;
  FL_TRY(const auto levels, read_levels(read.levels, id == BlockFormat::lanes_rans,
                                        lane_levels(head.bits), out.size(), scratch));
  // In integers: (level - u) * 2^fine_bits * mantissa, of at most 24 bits.
  const int fine_bits = lane_dither_bits(head.bits) + 1;
  const int mantissa = head.step.mantissa();
  const float unit = std::ldexp(1.0F, head.step.exponent() - fine_bits);
  if (!head.has_dither) {
    const auto step = static_cast<float>(head.step.value());
    kernels().dequantize(levels.data(), levels.size(), step, out.data());
    return {};
  }
  const auto words = dither_words(head.key, out.size(), scratch.words);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int32_t fine = levels[i] * (1 << fine_bits) - lane_dither_of(words[i], head.bits);
    out[i] = static_cast<float>(fine * mantissa) * unit;
  }
  return {};
}

}  // namespace fl::codec
