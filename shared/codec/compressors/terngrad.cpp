// SPDX-License-Identifier: Apache-2.0
// "terngrad": TernGrad, Wen 2017, sections 3 and 4. Each value is rounded stochastically to -scale,
// 0 or scale, with scale = max|x| of the block. Before that |x| is clipped at `clip` standard
// deviations about zero, because the paper models gradients with mean zero. Clipping makes the
// scale smaller, so that fewer values become 0, but it adds a bias: only clip=0 is unbiased.
//
// With error feedback each value is rounded to the nearest of the three, with a scale that suits
// this instead of a clip (quantized_levels.hpp). With stochastic rounding the squared error for
// Gaussian values would be as large as their sum of squares, or 2.5 times that with clip=0, and the
// residual would grow for ever.
//
// The bytes: the scale, then the levels -1, 0 and 1.
#include "shared/codec/spec/table.hpp"

#include "kernels/generic/pack.hpp"
#include "kernels/kernels.hpp"
#include "shared/codec/device/device_levels.hpp"
#include "shared/codec/entropy/quantized_levels.hpp"
#include "shared/codec/entropy/zero_run_coder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace fl::codec {

namespace {

constexpr BlockFormat terngrad_packed{6};
constexpr BlockFormat terngrad_rans{9};
constexpr BlockFormat terngrad_runs{10};

constexpr float clip_max = 256;  // No value of 65,536 can be more standard deviations from zero.

struct TerngradSettings {
  float clip = 2.5f;          // In standard deviations; 0: nothing is clipped.
  bool has_feedback = false;  // Whether to round to the nearest instead of stochastically.
};

class Terngrad final : public Compressor, public LevelCoder {
 public:
  explicit Terngrad(const TerngradSettings& settings) : settings_(settings) {
    FL_ASSERT(settings.clip >= 0);
  }

  std::string spec() const override {
    if (settings_.has_feedback || settings_.clip == TerngradSettings{}.clip) return "terngrad";
    return fmt::format("terngrad,clip={}", settings_.clip);
  }
  std::size_t block_bytes_max(std::size_t elements) const override {
    return 1 + sizeof(float) + packed_bytes(elements, 1);
  }
  Result<void> encode(std::span<const float> x, const Scan& scan, const Layout& layout,
                      const Block& block, std::uint64_t seed, const CompressorPlan&,
                      EncodeScratch& scratch, std::vector<std::byte>& out) const override {
    float scale = scale_of(scan, x.size());
    FL_CHECK(check_scale(scale, layout, block.flat, "terngrad"));
    const auto levels = levels_in(scratch.levels, x.size());
    if (settings_.has_feedback) {
      scale = nearest_run(x, scale, 1, levels.data());
    } else {
      quantize_run(x, scale, 1, block, 0, seed, levels.data());
    }
    out.resize(1 + sizeof scale);
    store(MutableBytes(out), 1, scale);
    if (append_runs(levels, 1, out)) {
      out[0] = static_cast<std::byte>(terngrad_runs);
      return {};
    }
    const bool is_rans = append_levels(levels, 1, scratch.coded, out);
    out[0] = static_cast<std::byte>(is_rans ? terngrad_rans : terngrad_packed);
    return {};
  }

  const LevelCoder* level_coder() const override { return this; }

  std::optional<LevelBlock> level_block(const Block& block, std::uint64_t seed,
                                        const CompressorPlan&) const override {
    if (settings_.has_feedback) return fitted_block(block, 1, block.elements);
    LevelBlock run = stochastic_block(block, 1, block.elements, seed);
    run.clip = settings_.clip;
    return run;
  }

  LevelCode level_code(const LevelBlock& block, const LevelTally& tally,
                       std::vector<std::byte>& out) const override {
    if (tally.is_levelled == 0) return {};
    if (is_for_runs(block.elements, count_levels(block, tally)[device_levels_max])) return {};
    out.resize(1 + sizeof(float));
    out[0] = static_cast<std::byte>(terngrad_rans);
    store(MutableBytes(out), 1, tally.scales[0]);
    return append_level_tables(block, tally, 1, 0, packed_bytes(block.elements, 1), out);
  }

 private:
  [[nodiscard]] float scale_of(const Scan& scan, std::size_t elements) const {
    if (settings_.clip == 0 || settings_.has_feedback) return scan.max_abs;
    const double sigma = std::sqrt(scan.sum_squares / static_cast<double>(elements));
    return static_cast<float>(std::min<double>(scan.max_abs, settings_.clip * sigma));
  }

  TerngradSettings settings_;
};

}  // namespace

CompressorResult parse_terngrad(const SpecParts& parts) {
  if (parts.argument) return wrong(parts.whole, *parts.argument, "terngrad takes no argument");
  TerngradSettings settings;
  for (const auto& [key, value] : parts.settings) {
    if (key != "clip")
      return wrong(parts.whole, key, "terngrad has no such setting; its own is clip");
    FL_TRY(settings.clip,
           parse_real<float>(parts.whole, value,
                             fmt::format("clip must be a number from 0 to {}", clip_max),
                             [](float c) { return !std::signbit(c) && c <= clip_max; }));
  }
  settings.has_feedback = parts.error_feedback;
  return std::make_unique<Terngrad>(settings);
}

Result<void> decode_terngrad(BlockFormat id, Bytes body, std::span<float> out,
                             DecodeScratch& scratch) {
  if (body.size() < sizeof(float)) return Error(Errc::corrupt, "the scale is cut off");
  FL_TRY(const float scale, read_scale(body, 0));
  const Bytes coded = body.subspan(sizeof scale);
  std::span<const std::int16_t> levels;
  if (id == terngrad_runs) {
    const auto room = levels_in(scratch.levels, out.size());
    if (!read_runs(coded, 1, room)) return Error(Errc::corrupt, "the runs of levels are damaged");
    levels = room;
  } else {
    FL_TRY(levels, read_levels(coded, id == terngrad_rans, 1, out.size(), scratch));
  }
  kernels().dequantize(levels.data(), levels.size(), scale, out.data());
  return {};
}

}  // namespace fl::codec
