// SPDX-License-Identifier: Apache-2.0
// "qsgd": QSGD, Alistarh 2017, section 3.1, with stochastic rounding in buckets as in section 4.
// The scale of a bucket is its largest magnitude, or with norm=l2 its Euclidean norm. Levels are
// entropy-coded (the paper uses Elias codes), or in bit fields if that is shorter.
//
// With error feedback it rounds to the nearest level, with a scale that suits this instead of a
// norm (quantized_levels.hpp). With stochastic rounding and one level (S = 1) the squared error for
// Gaussian values would be 1.6 times their sum of squares, or 17 times with the Euclidean norm, and
// the residual would grow for ever.
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

constexpr BlockFormat qsgd_packed{2};
constexpr BlockFormat qsgd_rans{3};

enum class QsgdNorm { max, l2 };

struct QsgdSettings {
  std::int32_t levels;         // S, 1 to 32767.
  std::uint32_t bucket = 512;  // Elements that share a scale, 1 to 65536. The first begins with the
                               // block.
  QsgdNorm norm = QsgdNorm::max;
  bool has_feedback = false;  // Whether to round to the nearest instead of stochastically.
};

constexpr std::size_t qsgd_settings_bytes = 4;

std::size_t bucket_count(std::size_t elements, std::uint32_t bucket) {
  return (elements + bucket - 1) / bucket;
}

/// Where the levels begin in a block's body: after the settings and the scales.
std::size_t levels_at(std::size_t elements, std::uint32_t bucket) {
  return qsgd_settings_bytes + bucket_count(elements, bucket) * sizeof(float);
}

class Qsgd final : public Compressor, public LevelCoder {
 public:
  explicit Qsgd(const QsgdSettings& settings) : settings_(settings) {
    FL_ASSERT(settings.levels >= 1 && settings.levels <= 32767);
    FL_ASSERT(settings.bucket >= 1 && settings.bucket <= part_elements_max);
  }

  std::string spec() const override {
    std::string text = fmt::format("qsgd:{}", settings_.levels);
    if (settings_.bucket != QsgdSettings{}.bucket) {
      text += fmt::format(",bucket={}", settings_.bucket);
    }
    if (settings_.norm == QsgdNorm::l2 && !settings_.has_feedback) text += ",norm=l2";
    return text;
  }

  std::size_t block_bytes_max(std::size_t elements) const override {
    return 1 + levels_at(elements, settings_.bucket) + packed_bytes(elements, settings_.levels);
  }

  Result<void> encode(std::span<const float> x, const Scan&, const Layout& layout,
                      const Block& block, std::uint64_t seed, const CompressorPlan&,
                      EncodeScratch& scratch, std::vector<std::byte>& out) const override {
    const MutableBytes body = begin_block(x.size(), out);
    const auto levels = levels_in(scratch.levels, x.size());
    std::size_t scale_at = qsgd_settings_bytes;
    for (std::size_t begin = 0; begin < x.size(); begin += settings_.bucket) {
      const auto bucket =
          x.subspan(begin, std::min<std::size_t>(settings_.bucket, x.size() - begin));
      float scale = scale_of(bucket);
      FL_CHECK(check_scale(scale, layout, block.flat + begin, "qsgd"));
      if (settings_.has_feedback) {
        scale = nearest_run(bucket, scale, settings_.levels, levels.data() + begin);
      } else {
        quantize_run(bucket, scale, settings_.levels, block, begin, seed, levels.data() + begin);
      }
      store(body, scale_at, scale);
      scale_at += sizeof scale;
    }
    const bool is_rans = append_levels(levels, settings_.levels, scratch.coded, out);
    out[0] = static_cast<std::byte>(is_rans ? qsgd_rans : qsgd_packed);
    return {};
  }

  const LevelCoder* level_coder() const override {
    const bool is_for_device =
        (settings_.norm == QsgdNorm::max || settings_.has_feedback) &&
        settings_.levels <= device_levels_max &&
        bucket_count(part_elements_max, settings_.bucket) <= device_buckets_max;
    return is_for_device ? this : nullptr;
  }

  std::optional<LevelBlock> level_block(const Block& block, std::uint64_t seed,
                                        const CompressorPlan&) const override {
    return settings_.has_feedback
               ? fitted_block(block, settings_.levels, settings_.bucket)
               : stochastic_block(block, settings_.levels, settings_.bucket, seed);
  }

  LevelCode level_code(const LevelBlock& block, const LevelTally& tally,
                       std::vector<std::byte>& out) const override {
    if (tally.is_levelled == 0) return {};
    const MutableBytes body = begin_block(block.elements, out);
    for (std::size_t b = 0; b < bucket_count(block); ++b) {
      store(body, qsgd_settings_bytes + b * sizeof(float), tally.scales[b]);
    }
    out[0] = static_cast<std::byte>(qsgd_rans);
    return append_level_tables(block, tally, settings_.levels, 0,
                               packed_bytes(block.elements, settings_.levels), out);
  }

 private:
  /// Writes the settings and returns the block's body, with room for the scales. The id and the
  /// scales are not written yet.
  MutableBytes begin_block(std::size_t elements, std::vector<std::byte>& out) const {
    out.resize(1 + levels_at(elements, settings_.bucket));
    const MutableBytes body = MutableBytes(out).subspan(1);
    store(body, 0, static_cast<std::uint16_t>(settings_.levels));
    store(body, 2, static_cast<std::uint16_t>(settings_.bucket - 1));
    return body;
  }

  [[nodiscard]] float scale_of(std::span<const float> bucket) const {
    const Scan scan = kernels().scan(bucket.data(), bucket.size());
    if (settings_.norm == QsgdNorm::max || settings_.has_feedback) return scan.max_abs;
    // This is never below the largest magnitude, because the root and the conversion are monotonic.
    return static_cast<float>(std::sqrt(scan.sum_squares));
  }

  QsgdSettings settings_;
};

}  // namespace

CompressorResult parse_qsgd(const SpecParts& parts) {
  FL_CHECK(check_has_argument(parts, "qsgd needs a number of levels here, such as qsgd:127"));
  QsgdSettings settings{};
  FL_TRY(settings.levels, parse_whole_argument(parts, "the levels of qsgd", 1, 32767));
  for (const auto& [key, value] : parts.settings) {
    if (key == "bucket") {
      FL_TRY(const std::int32_t bucket,
             parse_number(parts.whole, value, "bucket", 1, part_elements_max));
      settings.bucket = static_cast<std::uint32_t>(bucket);
    } else if (key == "norm") {
      if (value != "max" && value != "l2")
        return wrong(parts.whole, value, "norm must be max or l2");
      settings.norm = value == "l2" ? QsgdNorm::l2 : QsgdNorm::max;
    } else {
      return wrong(parts.whole, key, "qsgd has no such setting; its own are bucket and norm");
    }
  }
  settings.has_feedback = parts.error_feedback;
  return std::make_unique<Qsgd>(settings);
}

Result<void> decode_qsgd(BlockFormat id, Bytes body, std::span<float> out, DecodeScratch& scratch) {
  if (body.size() < qsgd_settings_bytes) return Error(Errc::corrupt, "qsgd settings are cut off");
  const std::int32_t levels = load<std::uint16_t>(body, 0);
  const std::uint32_t bucket = load<std::uint16_t>(body, 2) + 1u;
  if (levels < 1 || levels > 32767) {
    return Error(Errc::corrupt, fmt::format("qsgd with {} levels is not allowed", levels));
  }
  const std::size_t codes_at = levels_at(out.size(), bucket);
  if (body.size() < codes_at) return Error(Errc::corrupt, "qsgd scales are cut off");
  FL_TRY(const auto codes,
         read_levels(body.subspan(codes_at), id == qsgd_rans, levels, out.size(), scratch));
  std::size_t scale_at = qsgd_settings_bytes;
  for (std::size_t begin = 0; begin < out.size(); begin += bucket, scale_at += sizeof(float)) {
    FL_TRY(const float scale, read_scale(body, scale_at));
    kernels().dequantize(codes.data() + begin, std::min<std::size_t>(bucket, out.size() - begin),
                         scale / static_cast<float>(levels), out.data() + begin);
  }
  return {};
}

}  // namespace fl::codec
