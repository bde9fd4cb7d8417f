// Entropy-coded uniform quantization: one step for all values, levels near their entropy. With the
// dither that the decoder takes away again the error is uniform and independent of the value: Ziv
// 1985, "On universal quantization"; Zamir and Feder 1992, "On universal quantization by randomized
// uniform/lattice quantizers". Without it, but with each level's value at the mean of what fell
// there, no scalar quantizer of the rate is much better: Gish and Pierce 1968, "Asymptotically
// efficient quantizing".
//
// The dither is known before the levels are, and they are coded given its sign and a class of its
// size, which makes their rate nearly the conditional entropy that the theory has. Given the sign
// alone a Gaussian's error is twice the theory's at half a bit, 16% more at 1 bit, 2.5% at 2 bits
// and 0.6% at 3. With 2^k classes the rate's excess is 4^k times smaller. So there are fewer
// classes at higher rates, none from 3 bits on, and fewer where a block is small for the tables of
// all.
//
// Below half a bit few levels are not 0. Then a large block's states and tables would be a fifth of
// it at 0.1 bits; the runs of zeros between the others (run_codes.hpp) are within 3% of the entropy
// with all that a block has besides.
//
// The bytes of a block, with ids 24 (dither) and 25 (centroid):
//   binary32 step; 0: all elements are 0, and nothing follows
//   dither: u64 key of the dither; centroid: for each of the levels 1 to 4 and their negatives how
//       far their value lies towards 0, in a u8: (c - 128) / 256 steps
//   u8 S, 1 to 127, and 128 more when the levels are entropy-coded
//   u16 how many values are listed: those past 126.5 steps; its highest two bits are k where levels
//       are entropy-coded in 2^k classes; then the index of each as u16, then the values as
//       binary32
//   levels as in 2 or 3, 0 for the listed ones, in the classes of |u| (kernels.hpp, dither_classes)
// and with 31 (dither) and 32 (centroid), where no value is listed:
//   binary32 step, not 0
//   u8 S, 1 to 127
//   dither: u64 key of the dither, and u8 k; centroid: a u8 as above for each of the levels 1 to 4
//       that is no larger than S
//   levels as in 10, in 2^k classes
#include "shared/codec/codec_table.hpp"

#include "kernels/element.hpp"
#include "kernels/kernels.hpp"
#include "kernels/pack.hpp"
#include "kernels/rans.hpp"
#include "shared/codec/block_key.hpp"
#include "shared/codec/coded_levels.hpp"
#include "shared/codec/run_codes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <numeric>

namespace fl {

namespace {

constexpr double ecuq_rate_min = 0.05;
constexpr double ecuq_rate_max = 8;

struct EcuqSettings {
  double rate;  // Bits a value that the payload is to have, ecuq_rate_min to ecuq_rate_max.
  EcuqMode mode = EcuqMode::dither;
  EcuqMode mode_otherwise = EcuqMode::dither;  // Of a spec that does not say it.
};

constexpr float step_min = 0x1p-126f;
constexpr float step_max = 0x1p121f;
constexpr std::int32_t levels_max = rans_levels_max;
constexpr std::int32_t listed_symbol = 2 * levels_max + 1;  // In the search for the step.
constexpr std::size_t centroids = 4;
constexpr std::size_t extra_bytes = sizeof(std::uint64_t);  // The key, or more than the centroids.
constexpr std::size_t listed_bytes = sizeof(std::uint16_t) + sizeof(float);
constexpr unsigned rans_flag = 128;
constexpr int listed_bits = 14;
constexpr int class_bits_max = 3;
static_assert(1 << class_bits_max == rans_classes_max);
/// Of a block, for each frequency in its tables, which then cost less than they gain. So a block's
/// classes have no more symbols than rANS has.
constexpr std::size_t values_per_frequency = 256;
static_assert(block_elements_max / values_per_frequency <= rans_symbols_max);

/// More are not listed: the step becomes larger.
constexpr std::size_t listed_max(std::size_t elements) { return elements / 32; }

/// Below rates of half a bit there are more, up to 8 times as many: few of them tell anything.
constexpr std::size_t samples_max = 65536;
constexpr double low_rate = 0.5;
constexpr std::size_t part_samples_min = 128;
constexpr int tries_max = 16;

/// Bits of a value with this probability, 2^-32 to 1.
double bits_of(float share) {
  constexpr double bits_per_nat = 0x1.71547652b82fep0;
  return -bits_per_nat * static_cast<double>(element::log_unit<element::Scalar>(share));
}

/// Which of the levels up to S have one.
std::size_t centroids_below(std::int32_t top) {
  return std::min(static_cast<std::size_t>(top), centroids);
}

std::span<std::uint8_t> classes_in(LevelScratch& scratch, std::size_t elements) {
  scratch.classes.resize(std::max(scratch.classes.size(), elements));
  return std::span(scratch.classes).first(elements);
}

/// How often each symbol occurs, for each class.
using ClassCounts = std::array<std::array<std::uint32_t, rans_symbols_max>, rans_classes_max>;

/// Values of some tensors, and which of them are coded with statistics of their own.
struct Sample {
  std::vector<float> values;
  std::vector<std::size_t> part_ends;
  double elements;  // That the values stand for.
};

/// What a step makes of a sample's values. The classes, of 2^class_bits_max, are the same for all.
struct Tried {
  explicit Tried(std::size_t values) : levels(values), symbols(values), classes(values) {
    kernels().dither_classes(values, {.step = 1, .key = 0, .class_bits = class_bits_max},
                             classes.data());
  }
  std::vector<std::int16_t> levels;
  std::vector<std::uint8_t> symbols;
  std::vector<std::uint8_t> classes;
};

Sample sample_of(std::span<const std::span<const float>> tensors, std::size_t most) {
  std::size_t elements = 0;
  for (const auto& tensor : tensors) elements += tensor.size();
  const std::size_t stride = std::max<std::size_t>(1, (elements + most - 1) / most);
  // One of each `stride` elements, not always the same one: rows may have a pattern.
  const auto place_in = [stride](std::uint64_t cell) {
    const std::uint64_t random = cell * 0x9e3779b97f4a7c15 >> 32;
    return cell * stride + (random * stride >> 32);
  };
  Sample sample;
  sample.values.reserve(elements / stride + 1);
  sample.elements = static_cast<double>(elements);
  std::size_t begin = 0;  // Of a tensor among all elements.
  std::uint64_t cell = 0;
  for (const auto& tensor : tensors) {
    while (true) {
      const std::uint64_t place = place_in(cell);
      if (place >= begin + tensor.size()) break;
      sample.values.push_back(tensor[place - begin]);
      ++cell;
    }
    begin += tensor.size();
    const std::size_t last = sample.part_ends.empty() ? 0 : sample.part_ends.back();
    if (sample.values.size() >= last + part_samples_min) {
      sample.part_ends.push_back(sample.values.size());
    }
  }
  if (sample.part_ends.empty() || sample.part_ends.back() < sample.values.size()) {
    sample.part_ends.push_back(sample.values.size());
  }
  return sample;
}

class Ecuq final : public Method {
 public:
  explicit Ecuq(const EcuqSettings& settings) : settings_(settings) {
    FL_ASSERT(settings.rate >= ecuq_rate_min && settings.rate <= ecuq_rate_max);
  }

  std::string spec() const override {
    std::string text = fmt::format("ecuq:{}", settings_.rate);
    if (settings_.mode != settings_.mode_otherwise) {
      text += is_dithered() ? ",mode=dither" : ",mode=centroid";
    }
    return text;
  }

  std::size_t block_bytes_max(std::size_t elements) const override {
    return 1 + sizeof(float) + extra_bytes + 1 + sizeof(std::uint16_t) +
           listed_max(elements) * listed_bytes + packed_bytes(elements, levels_max);
  }

  MethodPlan plan(const Layout& layout, std::span<const float> x,
                  std::span<const std::uint32_t> tensors, std::uint64_t,
                  CodecState*) const override {
    std::vector<std::span<const float>> parts;
    for (const std::uint32_t t : tensors) {
      const Layout::Tensor& tensor = layout.tensors()[t];
      parts.push_back(x.subspan(tensor.offset, tensor.elements));
    }
    return {.step = step_for(sample_of(parts, samples_most())), .low_rank = {}};
  }

  Result<void> encode(std::span<const float> x, const Scan& scan, const Layout& layout,
                      const Block& block, std::uint64_t seed, const MethodPlan& plan,
                      EncodeScratch& scratch, std::vector<std::byte>& out) const override {
    const float max_abs = scan.max_abs;
    FL_CHECK(check_scale(max_abs, layout, block.flat, "ecuq"));
    out.resize(1 + sizeof(float));
    out[0] =
        static_cast<std::byte>(is_dithered() ? MethodId::ecuq_dither : MethodId::ecuq_centroid);
    if (max_abs == 0) {
      store(MutableBytes(out), 1, 0.0f);
      return {};
    }
    float step = plan.step;
    if (step == 0) step = step_for(sample_of({&x, 1}, samples_most()));
    if (step == 0) step = std::max(max_abs, step_min);  // What is not 0 was not in the sample.
    const std::uint64_t key = block_key(seed, KeyFamily::quantizer, block);
    const auto levels = levels_in(scratch.levels, x.size());
    std::size_t listed = 0;
    while (max_abs > levelled_max(step)) {
      listed = count_listed(x, step);
      if (listed <= listed_max(x.size())) break;
      listed = 0;
      step = std::min(step * 2, step_max);
    }
    const auto classes = classes_in(scratch.coded, class_bits_most() > 0 ? x.size() : 0);
    const std::int32_t top = std::clamp(quantize(x, step, key, levels, classes), 1, levels_max);
    const int class_bits = class_bits_of(x.size(), top);
    if (class_bits < class_bits_most()) {
      for (std::uint8_t& of : classes)
        of = static_cast<std::uint8_t>(of >> (class_bits_most() - class_bits));
    }
    const LevelClasses coded_classes = {.of = classes, .count = std::size_t{1} << class_bits};

    store(MutableBytes(out), 1, step);
    const auto zeros = static_cast<std::size_t>(std::ranges::count(levels, 0));
    if (listed == 0 && is_for_runs(x.size(), zeros) &&
        encode_runs(x, step, key, levels, top, coded_classes, out))
      return {};
    if (is_dithered()) {
      append(out, key);
    } else {
      for (const std::uint8_t centroid : centroids_of(x, step, levels)) append(out, centroid);
    }
    const std::size_t head_at = out.size();
    append(out, std::uint8_t{0});
    append(out, std::uint16_t{0});
    if (listed > 0) append_listed(x, step, levels, out);
    const bool is_rans = append_levels(levels, top, scratch.coded, out, coded_classes);
    out[head_at] = static_cast<std::byte>(static_cast<unsigned>(top) | (is_rans ? rans_flag : 0));
    store(MutableBytes(out), head_at + 1,
          static_cast<std::uint16_t>(listed | (is_rans ? class_bits : 0) << listed_bits));
    return {};
  }

 private:
  [[nodiscard]] bool is_dithered() const { return settings_.mode == EcuqMode::dither; }

  /// Of a large block.
  [[nodiscard]] int class_bits_most() const {
    if (!is_dithered() || settings_.rate >= 3) return 0;
    return settings_.rate >= 2 ? 1 : settings_.rate > 1 ? 2 : class_bits_max;
  }

  /// Of a block whose levels are from -top to top.
  [[nodiscard]] int class_bits_of(std::size_t elements, std::int32_t top) const {
    const std::size_t values = values_per_frequency * static_cast<std::size_t>(2 * top + 1);
    int bits = class_bits_most();
    while (bits > 0 && elements < values << bits) --bits;
    return bits;
  }

  [[nodiscard]] std::size_t samples_most() const {
    return static_cast<std::size_t>(samples_max * std::clamp(low_rate / settings_.rate, 1.0, 8.0));
  }

  /// Behind the step; false: bit fields are shorter, and `out` is as it was.
  bool encode_runs(std::span<const float> x, float step, std::uint64_t key,
                   std::span<const std::int16_t> levels, std::int32_t top,
                   const LevelClasses& classes, std::vector<std::byte>& out) const {
    const std::size_t before = out.size();
    append(out, static_cast<std::uint8_t>(top));
    if (is_dithered()) {
      append(out, key);
      append(out, static_cast<std::uint8_t>(std::countr_zero(classes.count)));
    } else {
      const auto all = centroids_of(x, step, levels);
      for (std::size_t c = 0; c < centroids_below(top); ++c) append(out, all[c]);
    }
    if (!append_runs(levels, top, out, classes)) {
      out.resize(before);
      return false;
    }
    out[0] = static_cast<std::byte>(is_dithered() ? MethodId::ecuq_dither_runs
                                                  : MethodId::ecuq_centroid_runs);
    return true;
  }

  /// Larger values are listed, whatever their dither: the others' levels are at most 127.
  static float levelled_max(float step) { return step * (levels_max - 0.5f); }

  static std::size_t count_listed(std::span<const float> x, float step) {
    const float most = levelled_max(step);
    return static_cast<std::size_t>(
        std::ranges::count_if(x, [most](float v) { return std::fabs(v) > most; }));
  }

  template <class T>
  static void append(std::vector<std::byte>& out, T value) {
    const std::size_t at = out.size();
    out.resize(at + sizeof value);
    store(MutableBytes(out), at, value);
  }

  /// Replaces the levels of what is listed by 0.
  static void append_listed(std::span<const float> x, float step, std::span<std::int16_t> levels,
                            std::vector<std::byte>& out) {
    std::vector<float> values;
    for (std::size_t i = 0; i < levels.size(); ++i) {
      if (!(std::fabs(x[i]) > levelled_max(step))) continue;
      levels[i] = 0;
      append(out, static_cast<std::uint16_t>(i));
      values.push_back(x[i]);
    }
    for (const float value : values) append(out, value);
  }

  /// The classes are filled unless there are none.
  std::int32_t quantize(std::span<const float> x, float step, std::uint64_t key,
                        std::span<std::int16_t> levels, std::span<std::uint8_t> classes) const {
    if (!is_dithered()) return kernels().round(x.data(), x.size(), step, levels.data());
    return kernels().dither(x.data(), x.size(),
                            {.step = step, .key = key, .class_bits = class_bits_most()},
                            levels.data(), classes.empty() ? nullptr : classes.data());
  }

  static std::array<std::uint8_t, centroids> centroids_of(std::span<const float> x, float step,
                                                          std::span<const std::int16_t> levels) {
    // By turns in two tables, so that one sum need not wait for the one before.
    std::array<double, centroids + 2> sums[2] = {};
    std::array<std::uint32_t, centroids + 2> counts[2] = {};
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto level =
          std::min<std::size_t>(static_cast<std::size_t>(std::abs(levels[i])), centroids + 1);
      sums[i % 2][level] += static_cast<double>(std::fabs(x[i]));
      ++counts[i % 2][level];
    }
    std::array<std::uint8_t, centroids> out;
    for (std::size_t level = 1; level <= centroids; ++level) {
      const std::uint32_t count = counts[0][level] + counts[1][level];
      const double mean = count == 0 ? static_cast<double>(level)
                                     : (sums[0][level] + sums[1][level]) / count / step;
      const double place = (static_cast<double>(level) - mean) * 256 + 128.5;
      out[level - 1] = static_cast<std::uint8_t>(std::clamp(place, 0.0, 255.0));
    }
    return out;
  }

  /// The symbols from `begin` to `end`, by the classes that blocks of these will have. Returns how
  /// many there are.
  std::size_t count_classes(const Tried& tried, std::size_t begin, std::size_t end,
                            std::size_t block_elements, ClassCounts& counts) const {
    if (class_bits_most() == 0) {
      kernels().count_symbols(tried.symbols.data() + begin, end - begin, counts[0].data());
      return 1;
    }
    counts = {};
    for (std::size_t i = begin; i < end; ++i) ++counts[tried.classes[i]][tried.symbols[i]];
    std::int32_t top = 1;  // Where a value is listed, the most.
    for (std::int32_t s = 0; s <= listed_symbol; ++s) {
      const auto occurs = [s](const auto& of) { return of[static_cast<std::size_t>(s)] > 0; };
      if (std::ranges::any_of(counts, occurs)) top = std::max(top, std::abs(s - levels_max));
    }
    const int bits = class_bits_of(block_elements, top);
    for (std::size_t c = 1; c < counts.size(); ++c) {
      const std::size_t into = c >> (class_bits_max - bits);
      if (into == c) continue;
      std::ranges::transform(counts[into], counts[c], counts[into].begin(), std::plus{});
      counts[c] = {};
    }
    return std::size_t{1} << bits;
  }

  /// Whether so few levels are not 0, and none is listed.
  static bool is_coded_as_runs(std::span<const std::array<std::uint32_t, rans_symbols_max>> of) {
    std::uint64_t zeros = 0;
    std::uint64_t all = 0;
    for (const auto& counts : of) {
      if (counts[listed_symbol] > 0) return false;
      zeros += counts[levels_max];
      all = std::accumulate(counts.begin(), counts.end(), all);
    }
    return is_for_runs(all, zeros);
  }

  /// The bits of a value with this step, of the sample's and of all that they stand for.
  [[nodiscard]] double rate_of(const Sample& sample, float step, Tried& tried) const {
    const std::size_t n = sample.values.size();
    quantize(sample.values, step, 0, tried.levels, {});
    const float most = levelled_max(step);
    const float* const values = sample.values.data();
    const std::int16_t* const levels = tried.levels.data();
    std::uint8_t* const symbols = tried.symbols.data();
    for (std::size_t i = 0; i < n; ++i) {
      const std::int32_t symbol =
          std::fabs(values[i]) > most ? listed_symbol : levels[i] + levels_max;
      symbols[i] = static_cast<std::uint8_t>(symbol);
    }
    const double scale = sample.elements / static_cast<double>(n);
    double bits = 0;
    double fixed_bits = 0;
    std::size_t begin = 0;
    for (const std::size_t end : sample.part_ends) {
      const double elements = static_cast<double>(end - begin) * scale;
      const double blocks = std::max(1.0, elements / block_elements_default);
      const auto block_elements = static_cast<std::size_t>(elements / blocks);
      ClassCounts classes;
      const std::size_t class_count = count_classes(tried, begin, end, block_elements, classes);
      const bool is_sparse = is_coded_as_runs(std::span(classes).first(class_count));
      double table_bits = 0;
      for (auto& counts : std::span(classes).first(class_count)) {
        bits += counts[listed_symbol] * static_cast<double>(8 * listed_bytes) * scale;
        counts[levels_max] += counts[listed_symbol];
        counts[listed_symbol] = 0;
        // Of few samples there may be none of a class.
        if (std::ranges::count(counts, 0u) == rans_symbols_max) continue;
        const RansFrequencies frequencies = rans_frequencies(counts);
        const auto values_seen =
            static_cast<float>(std::accumulate(counts.begin(), counts.end(), 0u));
        double levels_seen = 0;
        for (std::size_t s = 0; s < counts.size(); ++s) {
          if (counts[s] == 0) continue;
          const float share = is_sparse ? static_cast<float>(counts[s]) / values_seen
                                        : static_cast<float>(frequencies[s]) * 0x1p-12f;
          bits += counts[s] * scale * bits_of(share);
          ++levels_seen;
          if (!is_sparse) table_bits += 3 + std::bit_width(frequencies[s]);
        }
        // What few samples make an entropy too small by (Miller 1955, "Note on the bias of
        // information estimates"); the blocks' own is too small in the same way.
        bits += (levels_seen - 1) * 0.72134752 * std::max(0.0, scale - blocks);
      }
      const std::size_t lanes = rans_lanes(block_elements);
      const double head_bytes = is_sparse ? 12 + 4 * static_cast<double>(class_count)
                                          : 24 + static_cast<double>(lanes * sizeof(std::uint32_t));
      fixed_bits += blocks * (8 * head_bytes + table_bits);
      begin = end;
    }
    // What tables and heads of small tensors cost is not taken from the values.
    return (bits + std::min(fixed_bits, settings_.rate / 8 * sample.elements)) / sample.elements;
  }

  /// 0 if all of the sample is 0, or none is there.
  [[nodiscard]] float step_for(const Sample& sample) const {
    const std::size_t n = sample.values.size();
    const Scan scan = kernels().scan(sample.values.data(), n);
    if (!(scan.max_abs > 0)) return 0;
    Tried tried(n);
    // In the bits of a float, where 2^23 is an octave: the logarithm, nearly.
    constexpr double octave = 0x1p23;
    const auto step_at = [](double place) {
      return std::clamp(std::bit_cast<float>(static_cast<std::int32_t>(place)), step_min, step_max);
    };
    const auto place_of = [](float step) {
      return static_cast<double>(std::bit_cast<std::int32_t>(step));
    };
    const double sigma = std::sqrt(scan.sum_squares / static_cast<double>(n));
    const auto start = static_cast<float>(std::clamp<double>(sigma, step_min, step_max));
    // A Gaussian's levels have log2(sigma / step) + 2.05 bits.
    double place = place_of(start) + (2.05 - settings_.rate) * octave;
    double too_small = place_of(start) - 16 * octave;
    // Half a bit of Gaussian values has a step of 5 sigma, and of 7 in one class, and half the bits
    // at most twice the step; few values must not have a much larger one only because their tables
    // are dear.
    const double low = std::min(1.0, settings_.rate / low_rate);
    double too_large = place_of(start) + (3.5 + bits_of(static_cast<float>(low))) * octave;
    too_small = std::max(too_small, place_of(step_min));
    too_large = std::min(too_large, place_of(step_max));
    // The entropy of a sample is off by about as much; rather less than what was asked for.
    const double target = settings_.rate - 0.005 * low;
    double slope = -1;  // Bits an octave; less steep at low rates.
    double place_before = place;
    double excess_before = 0;
    for (int tries = 0; tries < tries_max; ++tries) {
      if (place <= too_small || place >= too_large) place = (too_small + too_large) / 2;
      const double excess = rate_of(sample, step_at(place), tried) - target;
      if (std::fabs(excess) < 0.001 * target) return step_at(place);
      (excess > 0 ? too_small : too_large) = place;
      if (tries > 0) {
        slope = (excess - excess_before) / (place - place_before) * octave;
        slope = std::clamp(slope, -2.0, -0.2 * low);
      }
      place_before = place;
      excess_before = excess;
      place -= excess / slope * octave;
    }
    return step_at(too_large);
  }

  EcuqSettings settings_;
};

}  // namespace

MethodResult parse_ecuq(const SpecParts& parts) {
  FL_CHECK(check_has_argument(parts, "ecuq wants its bits a value here, such as ecuq:2"));
  EcuqSettings settings{};
  FL_TRY(settings.rate, parse_argument(parts, [&](std::string_view rate) {
           if (rate.ends_with("bit")) rate.remove_suffix(3);
           return parse_real<double>(
               parts.whole, rate,
               fmt::format("the bits of ecuq are a number from {} to {}", ecuq_rate_min,
                           ecuq_rate_max),
               [](double r) { return r >= ecuq_rate_min && r <= ecuq_rate_max; });
         }));
  settings.mode_otherwise = parts.error_feedback ? EcuqMode::centroid : EcuqMode::dither;
  settings.mode = settings.mode_otherwise;
  for (const auto& [key, value] : parts.settings) {
    if (key != "mode") return wrong(parts.whole, key, "ecuq has the setting mode");
    if (value != "dither" && value != "centroid") {
      return wrong(parts.whole, value, "mode is dither or centroid");
    }
    settings.mode = value == "dither" ? EcuqMode::dither : EcuqMode::centroid;
  }
  return std::make_unique<Ecuq>(settings);
}

namespace {

Error damaged(std::string_view what) { return {Errc::corrupt, std::string(what)}; }

/// The value of each level from -S on, in steps.
void place_levels(std::span<const std::int16_t> levels, float step, Bytes towards_zero,
                  std::span<float> out) {
  std::array<float, 2 * levels_max + 1> values;
  for (std::int32_t level = 0; level <= levels_max; ++level) {
    auto value = static_cast<float>(level);
    if (level >= 1 && level <= std::ssize(towards_zero)) {
      const int c = std::to_integer<int>(towards_zero[static_cast<std::size_t>(level - 1)]);
      value -= static_cast<float>(c - 128) * 0x1p-8f;
    }
    values[static_cast<std::size_t>(levels_max + level)] = value * step;
    values[static_cast<std::size_t>(levels_max - level)] = -value * step;
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = values[static_cast<std::size_t>(levels[i] + levels_max)];
  }
}

}  // namespace

Result<void> decode_ecuq(Bytes body, EcuqMode mode, std::span<float> out, DecodeScratch& scratch) {
  const bool is_dithered = mode == EcuqMode::dither;
  const std::size_t extra = is_dithered ? sizeof(std::uint64_t) : centroids;
  const std::size_t listed_at = sizeof(float) + extra + 1 + sizeof(std::uint16_t);
  if (body.size() < sizeof(float)) return damaged("the step is cut off");
  const auto step = load<float>(body);
  if (std::bit_cast<std::uint32_t>(step) == 0) {
    std::ranges::fill(out, 0.0f);
    return check_body_bytes(body, sizeof step);
  }
  // Written so that NaN fails too.
  if (!(step >= step_min && step <= step_max)) return damaged(fmt::format("the step is {}", step));
  if (body.size() < listed_at) return damaged("the block's head is cut off");
  const auto head = std::to_integer<unsigned>(body[sizeof step + extra]);
  const auto top = static_cast<std::int32_t>(head % rans_flag);
  if (top < 1) return damaged("there are no levels");
  const unsigned counted = load<std::uint16_t>(body, listed_at - sizeof(std::uint16_t));
  const std::size_t listed = counted % (1u << listed_bits);
  const auto class_bits = static_cast<int>(counted >> listed_bits);
  const bool is_rans = head >= rans_flag;
  if (class_bits > 0 && !(is_rans && is_dithered)) return damaged("there are no classes here");
  const Bytes list = body.subspan(listed_at);
  if (listed > listed_max(out.size()) || list.size() < listed * listed_bytes) {
    return damaged(fmt::format("{} values are listed", listed));
  }
  const std::uint64_t key = is_dithered ? load<std::uint64_t>(body, sizeof step) : 0;
  const auto classes = classes_in(scratch.coded, class_bits > 0 ? out.size() : 0);
  kernels().dither_classes(classes.size(), {.step = step, .key = key, .class_bits = class_bits},
                           classes.data());
  FL_TRY(const auto levels,
         read_levels(list.subspan(listed * listed_bytes), is_rans, top, out.size(), scratch,
                     {.of = classes, .count = std::size_t{1} << class_bits}));
  if (is_dithered) {
    kernels().undither(levels.data(), levels.size(), {.step = step, .key = key}, out.data());
  } else {
    place_levels(levels, step, body.subspan(sizeof step, centroids), out);
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

Result<void> decode_ecuq_runs(Bytes body, EcuqMode mode, std::span<float> out,
                              DecodeScratch& scratch) {
  const bool is_dithered = mode == EcuqMode::dither;
  if (body.size() < sizeof(float) + 1) return damaged("the step is cut off");
  const auto step = load<float>(body);
  if (!(step >= step_min && step <= step_max)) return damaged(fmt::format("the step is {}", step));
  const auto top = std::to_integer<std::int32_t>(body[sizeof step]);
  if (top < 1 || top > levels_max) return damaged(fmt::format("there are {} levels", top));
  const Bytes rest = body.subspan(sizeof step + 1);
  const std::size_t extra = is_dithered ? sizeof(std::uint64_t) + 1 : centroids_below(top);
  if (rest.size() < extra) return damaged("the block's head is cut off");
  const std::uint64_t key = is_dithered ? load<std::uint64_t>(rest) : 0;
  const int class_bits = is_dithered ? std::to_integer<int>(rest[sizeof key]) : 0;
  if (class_bits > class_bits_max) return damaged("there are no such classes");
  const auto classes = classes_in(scratch.coded, class_bits > 0 ? out.size() : 0);
  kernels().dither_classes(classes.size(), {.step = step, .key = key, .class_bits = class_bits},
                           classes.data());
  const auto levels = levels_in(scratch.levels, out.size());
  if (!read_runs(rest.subspan(extra), top, levels,
                 {.of = classes, .count = std::size_t{1} << class_bits}))
    return damaged("the runs of levels are damaged");
  if (is_dithered) {
    kernels().undither(levels.data(), levels.size(), {.step = step, .key = key}, out.data());
  } else {
    place_levels(levels, step, rest.first(extra), out);
  }
  return {};
}

}  // namespace fl
