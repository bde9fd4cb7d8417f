// SPDX-License-Identifier: Apache-2.0
// "ecuq": entropy-coded uniform quantization. All tensors have the same step (step.cpp), and the
// levels are coded near their entropy. There are two modes:
// - dither: a random dither is added before rounding, and the decoder subtracts it. The error is
//   then uniform and independent of the value. Ziv 1985, "On universal quantization"; Zamir and
//   Feder 1992, "On universal quantization by randomized uniform/lattice quantizers".
// - centroid: values are rounded to the nearest level, and a level decodes to the mean of its
//   values. No scalar quantizer of the same rate has a much smaller error. Gish and Pierce 1968,
//   "Asymptotically efficient quantizing".
//
// Both ends know the dither before the levels. So levels are coded given the sign of the dither and
// the class of its magnitude, and the rate is nearly the conditional entropy of the theory. Given
// only the sign, the error for Gaussian values is twice the theory's at 0.5 bits, 16% above it at 1
// bit, 2.5% at 2 bits, and 0.6% at 3 bits. With 2^k classes the excess of the rate is 4^k times
// smaller. So there are fewer classes at higher rates, only one from 3 bits on, and fewer classes
// if a block is too small for the tables or learned probabilities of all.
//
// Below half a bit few levels are not 0. In a block of 65,536 at 0.1 bits the rANS states and
// tables would be a fifth of the bytes. Instead the runs of zeros between the other levels are
// coded (zero_run_coder.hpp): the whole block is then within 3% of the entropy.
//
// The bytes after the id, for 24 (dither) and 25 (centroid):
//   binary32 step; if it is 0, all elements are 0 and nothing follows
//   dither: u64 key of the dither
//   centroid: a u8 c for each level from 1 to 4: the values of the level and of its negative are
//       (c - 128) / 256 steps closer to 0
//   u8 S, 1 to 127, plus 128 if the levels are entropy-coded
//   u16 number of listed values, which are those above 126.5 steps; its highest two bits are k if
//       the levels are entropy-coded in 2^k classes; then the index of each as u16, then the values
//       as binary32
//   the levels as in format 2 or 3, with 0 for a listed value, in the classes of |u|
//       (Kernels::dither_classes)
// and for 31 (dither) and 32 (centroid), which have no listed values:
//   binary32 step, not 0
//   u8 S, 1 to 127
//   dither: u64 key of the dither, u8 k
//   centroid: a u8 c as above for each level from 1 to min(4, S)
//   the levels as in format 10, in 2^k classes
#include "shared/codec/spec/table.hpp"

#include "kernels/generic/pack.hpp"
#include "kernels/kernels.hpp"
#include "shared/codec/compressors/ecuq/ecuq.hpp"
#include "shared/codec/core/block_key.hpp"
#include "shared/codec/device/device_levels.hpp"
#include "shared/codec/entropy/quantized_levels.hpp"
#include "shared/codec/entropy/zero_run_coder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <vector>

namespace fl::codec {

namespace {

constexpr BlockFormat ecuq_dither{24};
constexpr BlockFormat ecuq_centroid{25};
constexpr BlockFormat ecuq_dither_runs{31};
constexpr BlockFormat ecuq_centroid_runs{32};

constexpr std::size_t centroid_count = 4;
static_assert(centroid_count == summed_levels && ecuq_levels_max == device_levels_max);
constexpr std::size_t extra_bytes = sizeof(std::uint64_t);  // The key; centroids take fewer bytes.
constexpr unsigned rans_flag = 128;
constexpr int listed_bits = 14;

/// The most listed values. If there would be more, the encoder takes a larger step.
constexpr std::size_t listed_max(std::size_t elements) { return elements / 32; }

/// How many of the levels from 1 to `top` have a centroid.
std::size_t centroids_below(std::int32_t top) {
  return std::min(static_cast<std::size_t>(top), centroid_count);
}

std::size_t count_zeros(std::span<const std::int16_t> levels) {
  std::size_t zeros = 0;
  while (!levels.empty()) {
    // A 16-bit counter, so that SIMD adds eight at a time; `some` is short enough for it.
    const auto some = levels.first(std::min<std::size_t>(levels.size(), UINT16_MAX));
    std::uint16_t found = 0;
    for (const std::int16_t level : some) found = static_cast<std::uint16_t>(found + (level == 0));
    zeros += found;
    levels = levels.subspan(some.size());
  }
  return zeros;
}

std::span<std::uint8_t> classes_in(LevelScratch& scratch, std::size_t elements) {
  scratch.classes.resize(std::max(scratch.classes.size(), elements));
  return std::span(scratch.classes).first(elements);
}

class Ecuq final : public Compressor, public LevelCoder {
 public:
  explicit Ecuq(const EcuqSettings& settings) : settings_(settings) {
    FL_ASSERT(settings.rate >= ecuq_rate_min && settings.rate <= ecuq_rate_max);
  }

  std::string spec() const override {
    std::string text = fmt::format("ecuq:{}", settings_.rate);
    if (settings_.mode != settings_.mode_otherwise) {
      text += settings_.is_dithered() ? ",mode=dither" : ",mode=centroid";
    }
    return text;
  }

  std::size_t block_bytes_max(std::size_t elements) const override {
    return 1 + sizeof(float) + extra_bytes + 1 + sizeof(std::uint16_t) +
           listed_max(elements) * ecuq_listed_bytes + packed_bytes(elements, ecuq_levels_max);
  }

  bool sends_few() const override { return settings_.sends_few(); }

  CompressorPlan plan(const VectorToPlan& vector) const override {
    std::vector<std::span<const float>> parts;
    for (const std::uint32_t t : vector.tensors) parts.push_back(vector.values_of(t));
    return {.step = ecuq_step_for(settings_, parts, vector.block_elements), .low_rank = {}};
  }

  Result<void> encode(std::span<const float> x, const Scan& scan, const Layout& layout,
                      const Block& block, std::uint64_t seed, const CompressorPlan& plan,
                      EncodeScratch& scratch, std::vector<std::byte>& out) const override {
    const float max_abs = scan.max_abs;
    FL_CHECK(check_scale(max_abs, layout, block.flat, "ecuq"));
    if (max_abs == 0) {
      begin_block(0, out);
      return {};
    }
    float step = plan.step;
    if (step == 0) step = ecuq_step_for(settings_, {&x, 1});
    if (step == 0) step = std::max(max_abs, ecuq_step_min);  // The sample had only zeros.
    const std::uint64_t key = block_key(seed, KeyFamily::quantizer, block);
    const auto levels = levels_in(scratch.levels, x.size());
    std::size_t listed = 0;
    while (max_abs > ecuq_levelled_max(step)) {
      listed = count_listed(x, step);
      if (listed <= listed_max(x.size())) break;
      listed = 0;
      step = std::min(step * 2, ecuq_step_max);
    }
    const auto [top, class_bits, classes] = quantize(x, step, key, levels, scratch);

    begin_block(step, out);
    if (listed == 0 && is_for_runs(x.size(), count_zeros(levels)) &&
        encode_runs(x, step, key, levels, top, classes, out))
      return {};
    if (settings_.is_dithered()) {
      append(out, key);
    } else {
      for (const std::uint8_t centroid : centroids_of(x, step, levels)) append(out, centroid);
    }
    const std::size_t head_at = out.size();
    append(out, std::uint8_t{0});
    append(out, std::uint16_t{0});
    if (listed > 0) append_listed(x, step, levels, out);
    const bool is_rans = append_levels(levels, top, scratch.coded, out, classes);
    out[head_at] = static_cast<std::byte>(static_cast<unsigned>(top) | (is_rans ? rans_flag : 0));
    store(MutableBytes(out), head_at + 1,
          static_cast<std::uint16_t>(listed | (is_rans ? class_bits : 0) << listed_bits));
    return {};
  }

  /// Codes a large block as runs. If that does not suit, the block is coded in parts, and each part
  /// is rounded again with its own dither.
  Result<bool> encode_large(std::span<const float> x, const Scan& scan, const Layout& layout,
                            const Block& block, std::uint64_t seed, const CompressorPlan& plan,
                            EncodeScratch& scratch, std::vector<std::byte>& out) const override {
    FL_CHECK(check_scale(scan.max_abs, layout, block.flat, "ecuq"));
    if (plan.step == 0 || scan.max_abs > ecuq_levelled_max(plan.step)) return false;
    const std::uint64_t key = block_key(seed, KeyFamily::quantizer, block);
    const auto levels = levels_in(scratch.levels, x.size());
    const auto [top, class_bits, classes] = quantize(x, plan.step, key, levels, scratch);
    begin_block(plan.step, out);
    return is_for_runs(x.size(), count_zeros(levels)) &&
           encode_runs(x, plan.step, key, levels, top, classes, out);
  }

  const LevelCoder* level_coder() const override { return this; }

  std::optional<LevelBlock> level_block(const Block& block, std::uint64_t seed,
                                        const CompressorPlan& plan) const override {
    if (plan.step == 0) return std::nullopt;
    // `most` leaves blocks with listed values to the CPU.
    return LevelBlock{
        .begin = block.flat,
        .elements = block.elements,
        .rounding = settings_.is_dithered() ? LevelRounding::dither : LevelRounding::nearest,
        .most = std::min(ecuq_levelled_max(plan.step), scale_max),
        .seed = block_key(seed, KeyFamily::quantizer, block),
        .step = plan.step,
        .class_bits = settings_.class_bits_most()};
  }

  LevelCode level_code(const LevelBlock& block, const LevelTally& tally,
                       std::vector<std::byte>& out) const override {
    if (tally.is_levelled == 0) return {};
    const auto counts = count_levels(block, tally);
    constexpr auto middle = static_cast<std::size_t>(device_levels_max);
    if (is_for_runs(block.elements, counts[middle])) return {};
    std::size_t top = middle;
    while (top > 1 && counts[middle - top] == 0 && counts[middle + top] == 0) --top;
    const auto levels = static_cast<std::int32_t>(top);
    const int class_bits = settings_.class_bits_of(block.elements, levels);

    begin_block(block.step, out);
    if (settings_.is_dithered()) {
      append(out, block.seed);
    } else {
      std::array<std::uint32_t, centroid_count> values;
      for (std::size_t c = 0; c < centroid_count; ++c) {
        values[c] = counts[middle - c - 1] + counts[middle + c + 1];
      }
      for (const std::uint8_t centroid : centroids_from(tally.sums, values, block.step)) {
        append(out, centroid);
      }
    }
    append(out, static_cast<std::uint8_t>(top | rans_flag));
    append(out, static_cast<std::uint16_t>(class_bits << listed_bits));
    return append_level_tables(block, tally, levels, class_bits,
                               packed_bytes(block.elements, levels), out);
  }

 private:
  struct Quantized {
    std::int32_t top;  // The largest level, from 1 to ecuq_levels_max.
    int class_bits;
    LevelClasses classes;
  };

  /// Rounds x to `levels`. The classes are in scratch.coded.
  Quantized quantize(std::span<const float> x, float step, std::uint64_t key,
                     std::span<std::int16_t> levels, EncodeScratch& scratch) const {
    const int most = settings_.class_bits_most();
    const auto classes = classes_in(scratch.coded, most > 0 ? x.size() : 0);
    const std::int32_t top =
        std::clamp(settings_.quantize(x, step, key, levels, classes), 1, ecuq_levels_max);
    const int bits = settings_.class_bits_of(x.size(), top);
    if (bits < most) {
      for (std::uint8_t& of : classes) of = static_cast<std::uint8_t>(of >> (most - bits));
    }
    return {.top = top,
            .class_bits = bits,
            .classes = {.of = classes, .count = std::size_t{1} << bits}};
  }

  void begin_block(float step, std::vector<std::byte>& out) const {
    out.assign({static_cast<std::byte>(settings_.is_dithered() ? ecuq_dither : ecuq_centroid)});
    append(out, step);
  }

  /// Appends the levels as runs, with all that comes after the step. Returns false if bit fields
  /// are shorter; `out` is then unchanged.
  bool encode_runs(std::span<const float> x, float step, std::uint64_t key,
                   std::span<const std::int16_t> levels, std::int32_t top,
                   const LevelClasses& classes, std::vector<std::byte>& out) const {
    const std::size_t before = out.size();
    append(out, static_cast<std::uint8_t>(top));
    if (settings_.is_dithered()) {
      append(out, key);
      append(out, static_cast<std::uint8_t>(std::countr_zero(classes.count)));
    } else {
      const auto all = centroids_of_few(x, step, levels);
      for (std::size_t c = 0; c < centroids_below(top); ++c) append(out, all[c]);
    }
    if (!append_runs(levels, top, out, classes)) {
      out.resize(before);
      return false;
    }
    out[0] =
        static_cast<std::byte>(settings_.is_dithered() ? ecuq_dither_runs : ecuq_centroid_runs);
    return true;
  }

  static std::size_t count_listed(std::span<const float> x, float step) {
    const float most = ecuq_levelled_max(step);
    return static_cast<std::size_t>(
        std::ranges::count_if(x, [most](float v) { return std::fabs(v) > most; }));
  }

  template <class T>
  static void append(std::vector<std::byte>& out, T value) {
    const std::size_t at = out.size();
    out.resize(at + sizeof value);
    store(MutableBytes(out), at, value);
  }

  /// Appends the listed values and sets their levels to 0.
  static void append_listed(std::span<const float> x, float step, std::span<std::int16_t> levels,
                            std::vector<std::byte>& out) {
    std::vector<float> values;
    for (std::size_t i = 0; i < levels.size(); ++i) {
      if (!(std::fabs(x[i]) > ecuq_levelled_max(step))) continue;
      levels[i] = 0;
      append(out, static_cast<std::uint16_t>(i));
      values.push_back(x[i]);
    }
    for (const float value : values) append(out, value);
  }

  static std::array<std::uint8_t, centroid_count> centroids_of(
      std::span<const float> x, float step, std::span<const std::int16_t> levels) {
    // Two tables by turns, so that an addition need not wait for the one before.
    std::array<double, centroid_count + 2> sums[2] = {};
    std::array<std::uint32_t, centroid_count + 2> counts[2] = {};
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto level =
          std::min<std::size_t>(static_cast<std::size_t>(std::abs(levels[i])), centroid_count + 1);
      sums[i % 2][level] += static_cast<double>(std::fabs(x[i]));
      ++counts[i % 2][level];
    }
    std::array<double, centroid_count> sum;
    std::array<std::uint32_t, centroid_count> count;
    for (std::size_t c = 0; c < centroid_count; ++c) {
      sum[c] = sums[0][c + 1] + sums[1][c + 1];
      count[c] = counts[0][c + 1] + counts[1][c + 1];
    }
    return centroids_from(sum, count, step);
  }

  /// Like sums_of(), but faster if few levels are not 0. The sums are exact (LevelTally::sums), so
  /// their order does not matter.
  static std::array<std::uint8_t, centroid_count> centroids_of_few(
      std::span<const float> x, float step, std::span<const std::int16_t> levels) {
    std::array<double, centroid_count + 1> sum{};
    std::array<std::uint32_t, centroid_count + 1> count{};
    for_each_not_zero(levels, [&](std::size_t i) {
      const auto c =
          std::min<std::size_t>(static_cast<std::size_t>(std::abs(levels[i])) - 1, centroid_count);
      sum[c] += static_cast<double>(std::fabs(x[i]));
      ++count[c];
    });
    return centroids_from(std::span(sum).first<centroid_count>(),
                          std::span(count).first<centroid_count>(), step);
  }

  /// The centroids, from sum[l - 1], the sum of |x| over the levels l and -l, and count[l - 1], the
  /// number of these values.
  static std::array<std::uint8_t, centroid_count> centroids_from(
      std::span<const double, centroid_count> sum,
      std::span<const std::uint32_t, centroid_count> count, float step) {
    std::array<std::uint8_t, centroid_count> out;
    for (std::size_t c = 0; c < centroid_count; ++c) {
      const auto level = static_cast<double>(c + 1);
      const double mean = count[c] == 0 ? level : sum[c] / count[c] / step;
      out[c] = static_cast<std::uint8_t>(std::clamp((level - mean) * 256 + 128.5, 0.0, 255.0));
    }
    return out;
  }

  EcuqSettings settings_;
};

}  // namespace

CompressorResult parse_ecuq(const SpecParts& parts) {
  FL_CHECK(check_has_argument(parts, "ecuq needs the bits for each value here, such as ecuq:2"));
  EcuqSettings settings{};
  FL_TRY(settings.rate, parse_argument(parts, [&](std::string_view rate) {
           if (rate.ends_with("bit")) rate.remove_suffix(3);
           return parse_real<double>(
               parts.whole, rate,
               fmt::format("the bits of ecuq must be a number from {} to {}", ecuq_rate_min,
                           ecuq_rate_max),
               [](double r) { return r >= ecuq_rate_min && r <= ecuq_rate_max; });
         }));
  settings.mode_otherwise = parts.error_feedback ? EcuqMode::centroid : EcuqMode::dither;
  settings.mode = settings.mode_otherwise;
  for (const auto& [key, value] : parts.settings) {
    if (key != "mode") return wrong(parts.whole, key, "ecuq has no such setting; its own is mode");
    if (value != "dither" && value != "centroid") {
      return wrong(parts.whole, value, "mode must be dither or centroid");
    }
    settings.mode = value == "dither" ? EcuqMode::dither : EcuqMode::centroid;
  }
  return std::make_unique<Ecuq>(settings);
}

namespace {

Error damaged(std::string_view what) { return {Errc::corrupt, std::string(what)}; }

/// The decoded value of each level l, at index l + ecuq_levels_max.
using LevelValues = std::array<float, 2 * ecuq_levels_max + 1>;

/// `towards_zero` has the bytes c of the levels 1, 2, ... (see above).
LevelValues level_values(float step, Bytes towards_zero) {
  LevelValues values;
  values[ecuq_levels_max] = 0;
  for (std::int32_t level = 1; level <= ecuq_levels_max; ++level) {
    auto value = static_cast<float>(level);
    if (level <= std::ssize(towards_zero)) {
      const int c = std::to_integer<int>(towards_zero[static_cast<std::size_t>(level - 1)]);
      value -= static_cast<float>(c - 128) * 0x1p-8f;
    }
    values[static_cast<std::size_t>(ecuq_levels_max + level)] = value * step;
    values[static_cast<std::size_t>(ecuq_levels_max - level)] = -value * step;
  }
  return values;
}

/// out[i] = the value of levels[i].
void place_levels(std::span<const std::int16_t> levels, const LevelValues& values,
                  std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = values[static_cast<std::size_t>(levels[i] + ecuq_levels_max)];
}

/// The head with which formats 31 and 32 begin, and the bytes that follow.
struct RunsHead {
  float step;
  std::int32_t top;
  Bytes rest;
};

Result<RunsHead> read_runs_head(Bytes body) {
  if (body.size() < sizeof(float) + 1) return damaged("the step is cut off");
  const auto step = load<float>(body);
  if (!(step >= ecuq_step_min && step <= ecuq_step_max))
    return damaged(fmt::format("the step is {}", step));
  const auto top = std::to_integer<std::int32_t>(body[sizeof step]);
  if (top < 1 || top > ecuq_levels_max) return damaged(fmt::format("there are {} levels", top));
  return RunsHead{.step = step, .top = top, .rest = body.subspan(sizeof step + 1)};
}

Result<void> decode_dither_runs(Bytes body, std::span<float> out, DecodeScratch& scratch) {
  FL_TRY(const RunsHead head, read_runs_head(body));
  constexpr std::size_t extra = sizeof(std::uint64_t) + 1;
  if (head.rest.size() < extra) return damaged("the block's head is cut off");
  const auto key = load<std::uint64_t>(head.rest);
  const int class_bits = std::to_integer<int>(head.rest[sizeof key]);
  if (class_bits > ecuq_class_bits_max) return damaged("there are too many classes");
  const auto classes = classes_in(scratch.coded, class_bits > 0 ? out.size() : 0);
  kernels().dither_classes(
      classes.size(), {.step = head.step, .key = key, .class_bits = class_bits}, classes.data());
  const auto levels = levels_in(scratch.levels, out.size());
  if (!read_runs(head.rest.subspan(extra), head.top, levels,
                 {.of = classes, .count = std::size_t{1} << class_bits}))
    return damaged("the runs of levels are damaged");
  kernels().undither(levels.data(), levels.size(), {.step = head.step, .key = key}, out.data());
  return {};
}

}  // namespace

Result<void> decode_ecuq(BlockFormat id, Bytes body, std::span<float> out, DecodeScratch& scratch) {
  if (id == ecuq_dither_runs) return decode_dither_runs(body, out, scratch);
  const bool is_dithered = id == ecuq_dither;
  const std::size_t extra = is_dithered ? sizeof(std::uint64_t) : centroid_count;
  const std::size_t listed_at = sizeof(float) + extra + 1 + sizeof(std::uint16_t);
  if (body.size() < sizeof(float)) return damaged("the step is cut off");
  const auto step = load<float>(body);
  if (std::bit_cast<std::uint32_t>(step) == 0) {
    std::ranges::fill(out, 0.0f);
    return check_body_bytes(body, sizeof step);
  }
  // Written so that NaN fails too.
  if (!(step >= ecuq_step_min && step <= ecuq_step_max))
    return damaged(fmt::format("the step is {}", step));
  if (body.size() < listed_at) return damaged("the block's head is cut off");
  const auto head = std::to_integer<unsigned>(body[sizeof step + extra]);
  const auto top = static_cast<std::int32_t>(head % rans_flag);
  if (top < 1) return damaged("there are no levels");
  const unsigned counted = load<std::uint16_t>(body, listed_at - sizeof(std::uint16_t));
  const std::size_t listed = counted % (1u << listed_bits);
  const auto class_bits = static_cast<int>(counted >> listed_bits);
  const bool is_rans = head >= rans_flag;
  if (class_bits > 0 && !(is_rans && is_dithered)) return damaged("this block can't have classes");
  const Bytes list = body.subspan(listed_at);
  if (listed > listed_max(out.size()) || list.size() < listed * ecuq_listed_bytes) {
    return damaged(fmt::format("{} values are listed", listed));
  }
  const std::uint64_t key = is_dithered ? load<std::uint64_t>(body, sizeof step) : 0;
  const auto classes = classes_in(scratch.coded, class_bits > 0 ? out.size() : 0);
  kernels().dither_classes(classes.size(), {.step = step, .key = key, .class_bits = class_bits},
                           classes.data());
  FL_TRY(const auto levels,
         read_levels(list.subspan(listed * ecuq_listed_bytes), is_rans, top, out.size(), scratch,
                     {.of = classes, .count = std::size_t{1} << class_bits}));
  if (is_dithered) {
    kernels().undither(levels.data(), levels.size(), {.step = step, .key = key}, out.data());
  } else {
    place_levels(levels, level_values(step, body.subspan(sizeof step, centroid_count)), out);
  }
  const Bytes values = list.subspan(listed * sizeof(std::uint16_t));
  for (std::size_t i = 0; i < listed; ++i) {
    const std::size_t index = load<std::uint16_t>(list, i * sizeof(std::uint16_t));
    const auto value = load<float>(values, i * sizeof(float));
    if (index >= out.size() || !std::isfinite(value)) return damaged("a listed value is damaged");
    out[index] = value;
  }
  return {};
}

Result<SelectedValues> read_ecuq_runs(BlockFormat, Bytes body, std::size_t elements,
                                      DecodeScratch& scratch) {
  FL_TRY(const RunsHead head, read_runs_head(body));
  const std::size_t extra = centroids_below(head.top);
  if (head.rest.size() < extra) return damaged("the block's head is cut off");
  auto few = read_few(head.rest.subspan(extra), head.top, elements);
  if (!few) return damaged("the runs of levels are damaged");
  const LevelValues values = level_values(head.step, head.rest.first(extra));
  scratch.run_indices = std::move(few->indices);
  scratch.run_values.resize(few->levels.size());
  place_levels(few->levels, values, scratch.run_values);
  return SelectedValues{.indices = scratch.run_indices, .values = scratch.run_values};
}

}  // namespace fl::codec
