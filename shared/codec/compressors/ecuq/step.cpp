// The step of ecuq. The rate falls with the step, so it is searched for, by the secant method
// between bounds, on a sample of the values: their levels' entropy, and what the blocks' tables and
// heads cost besides.
#include "kernels/generic/element_math.hpp"
#include "kernels/generic/rans.hpp"
#include "kernels/kernels.hpp"
#include "shared/codec/compressors/ecuq/ecuq.hpp"
#include "shared/codec/entropy/zero_run_coder.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

namespace fl {

namespace {

constexpr std::int32_t listed_symbol = 2 * ecuq_levels_max + 1;
/// Below rates of half a bit there are more, up to 8 times as many: few of them tell anything.
constexpr std::size_t samples_max = 65536;
constexpr double low_rate = 0.5;
constexpr std::size_t part_samples_min = 128;
constexpr int tries_max = 16;
/// That are quantized at a time, in whole lines of random numbers.
constexpr std::size_t piece_samples = 4096;
static_assert(piece_samples % philox::half_line_elements == 0);

/// Bits of a value with this probability, 2^-32 to 1.
double bits_of(float share) {
  constexpr double bits_per_nat = 0x1.71547652b82fep0;
  return -bits_per_nat * static_cast<double>(element::log_unit<element::Scalar>(share));
}

/// How often each symbol occurs, for each class.
using ClassCounts = std::array<std::array<std::uint32_t, rans_symbols_max>, rans_classes_max>;

/// Values of some tensors, and which of them are coded with statistics of their own.
struct Sample {
  std::vector<float> values;
  std::vector<std::size_t> part_ends;
  double elements;  // That the values stand for.
  float max_abs = 0;
};

/// What a step makes of a sample's values. The classes are the same for all.
struct Tried {
  Tried(std::size_t values, int bits)
      : symbols(std::make_unique_for_overwrite<std::uint8_t[]>(values)), class_bits(bits) {
    if (bits == 0) return;
    classes = std::make_unique_for_overwrite<std::uint8_t[]>(values);
    kernels().dither_classes(values, {.step = 1, .key = 0, .class_bits = bits}, classes.get());
  }
  std::unique_ptr<std::uint8_t[]> symbols;
  int class_bits;
  std::unique_ptr<std::uint8_t[]> classes;  // None where there is one.
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
    if (stride == 1) {  // All of them.
      sample.values.insert(sample.values.end(), tensor.begin(), tensor.end());
    } else {
      while (true) {
        const std::uint64_t place = place_in(cell);
        if (place >= begin + tensor.size()) break;
        sample.values.push_back(tensor[place - begin]);
        ++cell;
      }
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

std::size_t samples_most(const EcuqSettings& settings) {
  return static_cast<std::size_t>(samples_max * std::clamp(low_rate / settings.rate, 1.0, 8.0));
}

/// The symbols from `begin` to `end`, by the classes that blocks of these will have. Returns how
/// many there are.
std::size_t count_classes(const EcuqSettings& settings, const Tried& tried, std::size_t begin,
                          std::size_t end, std::size_t block_elements, ClassCounts& counts) {
  if (tried.class_bits == 0) {
    kernels().count_symbols(tried.symbols.get() + begin, end - begin, counts[0].data());
    return 1;
  }
  const std::size_t classes = std::size_t{1} << tried.class_bits;
  for (std::size_t c = 0; c < classes; ++c) counts[c] = {};
  for (std::size_t i = begin; i < end; ++i) ++counts[tried.classes[i]][tried.symbols[i]];
  std::int32_t top = 1;  // Where a value is listed, the most.
  for (std::int32_t s = 0; s <= listed_symbol; ++s) {
    const auto occurs = [s](const auto& of) { return of[static_cast<std::size_t>(s)] > 0; };
    if (std::ranges::any_of(std::span(counts).first(classes), occurs))
      top = std::max(top, std::abs(s - ecuq_levels_max));
  }
  const int bits = settings.class_bits_of(block_elements, top);
  for (std::size_t c = 1; c < classes; ++c) {
    const std::size_t into = c >> (tried.class_bits - bits);
    if (into == c) continue;
    std::ranges::transform(counts[into], counts[c], counts[into].begin(), std::plus{});
    counts[c] = {};
  }
  return std::size_t{1} << bits;
}

/// Whether so few levels are not 0, and none is listed.
bool is_coded_as_runs(std::span<const std::array<std::uint32_t, rans_symbols_max>> of) {
  std::uint64_t zeros = 0;
  std::uint64_t all = 0;
  for (const auto& counts : of) {
    if (counts[listed_symbol] > 0) return false;
    zeros += counts[ecuq_levels_max];
    all = std::accumulate(counts.begin(), counts.end(), all);
  }
  return is_for_runs(all, zeros);
}

void symbols_of(std::span<const float> x, std::span<const std::int16_t> levels, float step,
                float max_abs, std::uint8_t* out) {
  for (std::size_t i = 0; i < x.size(); ++i)
    out[i] = static_cast<std::uint8_t>(levels[i] + ecuq_levels_max);
  const float most = ecuq_levelled_max(step);
  if (max_abs <= most) return;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::fabs(x[i]) > most) out[i] = static_cast<std::uint8_t>(listed_symbol);
  }
}

/// The bits of a value with this step, of the sample's and of all that they stand for.
double rate_of(const EcuqSettings& settings, const Sample& sample,
               std::uint32_t block_elements_most, float step, Tried& tried) {
  const std::size_t n = sample.values.size();
  std::array<std::int16_t, piece_samples> levels;
  for (std::size_t first = 0; first < n; first += piece_samples) {
    const auto piece = std::span(sample.values).subspan(first, std::min(piece_samples, n - first));
    settings.quantize(piece, step, 0, levels, {}, first);
    symbols_of(piece, levels, step, sample.max_abs, tried.symbols.get() + first);
  }
  const double scale = sample.elements / static_cast<double>(n);
  double bits = 0;
  double fixed_bits = 0;
  std::size_t begin = 0;
  for (const std::size_t end : sample.part_ends) {
    const double elements = static_cast<double>(end - begin) * scale;
    ClassCounts classes;
    double blocks = std::max(1.0, elements / block_elements_default);
    auto block_elements = static_cast<std::size_t>(elements / blocks);
    std::size_t class_count = count_classes(settings, tried, begin, end, block_elements, classes);
    const bool is_sparse = is_coded_as_runs(std::span(classes).first(class_count));
    if (is_sparse && block_elements_most > block_elements_default) {  // Else it is in parts.
      blocks = std::max(1.0, elements / block_elements_most);
      block_elements = static_cast<std::size_t>(elements / blocks);
      if (tried.class_bits > 0)
        class_count = count_classes(settings, tried, begin, end, block_elements, classes);
    }
    const bool has_tables = !is_sparse && block_elements > adaptive_levels_max;
    double table_bits = 0;
    for (auto& counts : std::span(classes).first(class_count)) {
      bits += counts[listed_symbol] * static_cast<double>(8 * ecuq_listed_bytes) * scale;
      counts[ecuq_levels_max] += counts[listed_symbol];
      counts[listed_symbol] = 0;
      // Of few samples there may be none of a class.
      if (std::ranges::count(counts, 0u) == rans_symbols_max) continue;
      const RansFrequencies frequencies = rans_frequencies(counts);
      const auto values_seen =
          static_cast<float>(std::accumulate(counts.begin(), counts.end(), 0u));
      double levels_seen = 0;
      for (std::size_t s = 0; s < counts.size(); ++s) {
        if (counts[s] == 0) continue;
        const float share = has_tables ? static_cast<float>(frequencies[s]) * 0x1p-12f
                                       : static_cast<float>(counts[s]) / values_seen;
        bits += counts[s] * scale * bits_of(share);
        ++levels_seen;
        if (has_tables) table_bits += 3 + std::bit_width(frequencies[s]);
      }
      // What few samples make an entropy too small by (Miller 1955, "Note on the bias of
      // information estimates"); the blocks' own is too small in the same way.
      bits += (levels_seen - 1) * 0.72134752 * std::max(0.0, scale - blocks);
      // Of levels without tables the probabilities cost as much as they take to be learned.
      if (!is_sparse && !has_tables)
        table_bits += (levels_seen - 1) / 2 * std::log2(values_seen * scale / blocks);
    }
    const std::size_t lanes = has_tables ? rans_lanes(block_elements) : 1;
    const double head_bytes = is_sparse ? 12 + 4 * static_cast<double>(class_count)
                                        : 20 + static_cast<double>(lanes * sizeof(std::uint32_t));
    fixed_bits += blocks * (8 * head_bytes + table_bits);
    begin = end;
  }
  // What tables and heads of small tensors cost is not taken from the values.
  return (bits + std::min(fixed_bits, settings.rate / 8 * sample.elements)) / sample.elements;
}

}  // namespace

float ecuq_step_for(const EcuqSettings& settings, std::span<const std::span<const float>> tensors,
                    std::uint32_t block_elements) {
  Sample sample = sample_of(tensors, samples_most(settings));
  const std::size_t n = sample.values.size();
  const Scan scan = kernels().scan(sample.values.data(), n);
  if (!(scan.max_abs > 0)) return 0;
  sample.max_abs = scan.max_abs;
  Tried tried(n, settings.class_bits_most());
  // In the bits of a float, where 2^23 is an octave: the logarithm, nearly.
  constexpr double octave = 0x1p23;
  const auto step_at = [](double place) {
    return std::clamp(std::bit_cast<float>(static_cast<std::int32_t>(place)), ecuq_step_min,
                      ecuq_step_max);
  };
  const auto place_of = [](float step) {
    return static_cast<double>(std::bit_cast<std::int32_t>(step));
  };
  const double sigma = std::sqrt(scan.sum_squares / static_cast<double>(n));
  const auto start = static_cast<float>(std::clamp<double>(sigma, ecuq_step_min, ecuq_step_max));
  // A Gaussian's levels have log2(sigma / step) + 2.05 bits.
  double place = place_of(start) + (2.05 - settings.rate) * octave;
  double too_small = place_of(start) - 16 * octave;
  // Half a bit of Gaussian values has a step of 5 sigma, and of 7 in one class, and half the bits
  // at most twice the step; few values must not have a much larger one only because their tables
  // are dear.
  const double low = std::min(1.0, settings.rate / low_rate);
  double too_large = place_of(start) + (3.5 + bits_of(static_cast<float>(low))) * octave;
  too_small = std::max(too_small, place_of(ecuq_step_min));
  too_large = std::min(too_large, place_of(ecuq_step_max));
  // The entropy of a sample is off by about as much; rather less than what was asked for.
  const double target = settings.rate - 0.005 * low;
  double slope = -1;  // Bits an octave; less steep at low rates.
  double place_before = place;
  double excess_before = 0;
  for (int tries = 0; tries < tries_max; ++tries) {
    if (place <= too_small || place >= too_large) place = (too_small + too_large) / 2;
    const double excess = rate_of(settings, sample, block_elements, step_at(place), tried) - target;
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

}  // namespace fl
