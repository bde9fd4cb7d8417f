// SPDX-License-Identifier: Apache-2.0
// Finds the step of ecuq. A larger step gives a lower rate, so the step is searched for with the
// secant method between bounds. The rate is estimated on a sample of the values, from the entropy
// of their levels and the size of the blocks' tables and heads.
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

namespace fl::codec {

namespace {

constexpr std::int32_t listed_symbol = 2 * ecuq_levels_max + 1;
/// At rates below half a bit there are up to 8 times as many samples, because few of them have a
/// level other than 0.
constexpr std::size_t samples_max = 65536;
constexpr double low_rate = 0.5;
constexpr std::size_t part_samples_min = 128;
constexpr int tries_max = 16;
/// How many samples are quantized at a time: whole lines of random numbers.
constexpr std::size_t piece_samples = 4096;
static_assert(piece_samples % philox::half_line_elements == 0);

/// The ideal code length in bits of a symbol with this probability, 2^-32 to 1.
double bits_of(float share) {
  constexpr double bits_per_nat = 0x1.71547652b82fep0;
  return -bits_per_nat * static_cast<double>(element::log_unit<element::Scalar>(share));
}

/// How often each symbol occurs, for each class.
using ClassCounts = std::array<std::array<std::uint32_t, rans_symbols_max>, rans_classes_max>;

/// Sampled values of some tensors, in parts. Each part is coded with its own statistics; it is one
/// tensor, or several small ones.
struct Sample {
  std::vector<float> values;
  std::vector<std::size_t> part_ends;
  double elements;  // How many elements the tensors have.
  float max_abs = 0;
};

/// The symbols of a sample's values with one step, and their classes, which are the same for all
/// steps.
struct Tried {
  Tried(std::size_t values, int bits)
      : symbols(std::make_unique_for_overwrite<std::uint8_t[]>(values)), class_bits(bits) {
    if (bits == 0) return;
    classes = std::make_unique_for_overwrite<std::uint8_t[]>(values);
    kernels().dither_classes(values, {.step = 1, .key = 0, .class_bits = bits}, classes.get());
  }
  std::unique_ptr<std::uint8_t[]> symbols;
  int class_bits;
  std::unique_ptr<std::uint8_t[]> classes;  // Null if there is only one class.
};

Sample sample_of(std::span<const std::span<const float>> tensors, std::size_t most) {
  std::size_t elements = 0;
  for (const auto& tensor : tensors) elements += tensor.size();
  const std::size_t stride = std::max<std::size_t>(1, (elements + most - 1) / most);
  // One of each `stride` elements, at changing places, because rows may have a pattern.
  const auto place_in = [stride](std::uint64_t cell) {
    const std::uint64_t random = cell * 0x9e3779b97f4a7c15 >> 32;
    return cell * stride + (random * stride >> 32);
  };
  Sample sample;
  sample.values.reserve(elements / stride + 1);
  sample.elements = static_cast<double>(elements);
  std::size_t begin = 0;  // The index of a tensor's first element among all elements.
  std::uint64_t cell = 0;
  for (const auto& tensor : tensors) {
    if (stride == 1) {  // The sample has all elements.
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

/// Counts the symbols from `begin` to `end` in the classes that a block of `block_elements` will
/// have. Returns how many classes there are.
std::size_t count_classes(const EcuqSettings& settings, const Tried& tried, std::size_t begin,
                          std::size_t end, std::size_t block_elements, ClassCounts& counts) {
  if (tried.class_bits == 0) {
    kernels().count_symbols(tried.symbols.get() + begin, end - begin, counts[0].data());
    return 1;
  }
  const std::size_t classes = std::size_t{1} << tried.class_bits;
  for (std::size_t c = 0; c < classes; ++c) counts[c] = {};
  for (std::size_t i = begin; i < end; ++i) ++counts[tried.classes[i]][tried.symbols[i]];
  std::int32_t top = 1;  // A listed value counts as level 128.
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

/// Whether the block of these levels is coded as runs of zeros: few are not 0, and no value is
/// listed.
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

/// The symbol of a level is level + ecuq_levels_max; a listed value has listed_symbol.
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

/// The estimated bits for each element with this step, over all elements that the sample stands
/// for.
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
    if (is_sparse && block_elements_most > block_elements_default) {  // Only runs are coded whole.
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
      // A class may be empty if there are few samples.
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
      // Corrects the bias of the entropy: with few samples it is too small (Miller 1955, "Note on
      // the bias of information estimates"). The entropy of each block is too small in the same
      // way, so `blocks` is subtracted.
      bits += (levels_seen - 1) * 0.72134752 * std::max(0.0, scale - blocks);
      // Without tables the coder learns the probabilities, which costs about this many bits.
      if (!is_sparse && !has_tables)
        table_bits += (levels_seen - 1) / 2 * std::log2(values_seen * scale / blocks);
    }
    const std::size_t lanes = has_tables ? rans_lanes(block_elements) : 1;
    const double head_bytes = is_sparse ? 12 + 4 * static_cast<double>(class_count)
                                        : 20 + static_cast<double>(lanes * sizeof(std::uint32_t));
    fixed_bits += blocks * (8 * head_bytes + table_bits);
    begin = end;
  }
  // The tables and heads count for at most an eighth of the rate, so that small tensors do not take
  // the bits from the values.
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
  // The search works on the bit pattern of the step, which is nearly its logarithm: 2^23 is an
  // octave (a factor of 2).
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
  // Levels of Gaussian values have log2(sigma / step) + 2.05 bits.
  double place = place_of(start) + (2.05 - settings.rate) * octave;
  double too_small = place_of(start) - 16 * octave;
  // The largest step. For Gaussian values half a bit needs a step of 5 sigma, or 7 sigma with one
  // class, and half the bits at most twice the step. The bound keeps a few values from getting a
  // much larger step only because their tables take many bits.
  const double low = std::min(1.0, settings.rate / low_rate);
  double too_large = place_of(start) + (3.5 + bits_of(static_cast<float>(low))) * octave;
  too_small = std::max(too_small, place_of(ecuq_step_min));
  too_large = std::min(too_large, place_of(ecuq_step_max));
  // The entropy of a sample has about this error. It is better to stay below the wanted rate.
  const double target = settings.rate - 0.005 * low;
  double slope = -1;  // Bits for each octave; less steep at low rates.
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

}  // namespace fl::codec
