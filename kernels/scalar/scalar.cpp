// SPDX-License-Identifier: Apache-2.0
// The plainest row. All other rows must give the same bits.
#include "kernels/generic/element_math.hpp"
#include "kernels/isa_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace fl {

namespace {

using element::Scalar;

void to_half(const float* x, std::size_t n, std::uint16_t* out) {
  for (std::size_t i = 0; i < n; ++i) out[i] = element::to_half(x[i]);
}

void from_half(const std::uint16_t* x, std::size_t n, float* out) {
  for (std::size_t i = 0; i < n; ++i) out[i] = element::from_half(x[i]);
}

void to_bf16(const float* x, std::size_t n, std::uint16_t* out) {
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = static_cast<std::uint16_t>(element::to_bf16<Scalar>(x[i]));
  }
}

void from_bf16(const std::uint16_t* x, std::size_t n, float* out) {
  for (std::size_t i = 0; i < n; ++i) out[i] = element::from_bf16<Scalar>(x[i]);
}

Scan scan(const float* x, std::size_t n) {
  double lanes[element::scan_lanes] = {};
  Scan result;
  result.first_bad = n;
  for (std::size_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) return {.first_bad = i};
    result.max_abs = std::max(result.max_abs, std::fabs(x[i]));
    lanes[i % element::scan_lanes] += static_cast<double>(x[i]) * x[i];
  }
  result.sum_squares = element::add_lanes(lanes);
  return result;
}

Range range(const float* x, std::size_t n) {
  Range out = {.min = x[0], .max = x[0]};
  for (std::size_t i = 1; i < n; ++i) {
    out.min = std::min(out.min, x[i]);
    out.max = std::max(out.max, x[i]);
  }
  return {.min = out.min + 0.0f, .max = out.max + 0.0f};  // -0 + 0 is +0.
}

double pack_signs(const float* x, std::size_t n, std::uint8_t* out) {
  double lanes[element::scan_lanes] = {};
  element::pack_signs(x, 0, n, out, lanes);
  return element::add_lanes(lanes);
}

void unpack_signs(const std::uint8_t* packed, std::size_t n, float scale, float* out) {
  for (std::size_t i = 0; i < n; ++i) out[i] = (packed[i / 8] >> i % 8 & 1) != 0 ? -scale : scale;
}

void add_rounded(std::int64_t* sum, const float* x, std::size_t n, double factor) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::int64_t product = std::llrint(x[i] * factor);
    // Unsigned, because the sums are modulo 2^64.
    sum[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(sum[i]) +
                                       static_cast<std::uint64_t>(product));
  }
}

void scale_fixed(const std::int64_t* sum, std::size_t n, double factor, float* out) {
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = static_cast<float>(static_cast<double>(sum[i]) * factor);
  }
}

void random_words(std::uint64_t seed, std::uint64_t stream, std::uint32_t* out, std::size_t n) {
  std::uint32_t line[philox::line_elements];
  for (std::size_t i = 0; i < n; i += philox::line_elements) {
    philox::fill_line(seed, stream, i / philox::line_elements, line);
    std::copy_n(line, std::min<std::size_t>(n - i, philox::line_elements), out + i);
  }
}

void gaussian(std::uint64_t seed, std::uint64_t stream, std::uint64_t first, float* out,
              std::size_t n) {
  std::uint32_t words[philox::line_elements];
  float values[philox::line_elements];
  while (n > 0) {
    const std::uint64_t begin = first % philox::line_elements;
    const std::size_t count = std::min<std::size_t>(n, philox::line_elements - begin);
    philox::fill_line(seed, stream, first / philox::line_elements, words);
    for (int k = 0; k < 8; ++k) {
      for (int j = 0; j < 32; j += 16) {
        element::box_muller<Scalar>(static_cast<std::int32_t>(words[j + k]),
                                    static_cast<std::int32_t>(words[j + k + 8]), values[j + k],
                                    values[j + k + 8]);
      }
    }
    std::copy_n(values + begin, count, out);
    first += count;
    out += count;
    n -= count;
  }
}

// The random half of element i, as the upper half of a word. `line` is the words of its line, and i
// counts from the start of the line.
std::int32_t upper_half(const std::uint32_t* line, std::size_t i) {
  const std::uint32_t word = line[i / 16 * 8 + i % 8];
  return static_cast<std::int32_t>(i % 16 < 8 ? word << 16 : word);
}

void quantize(const float* x, std::size_t n, const QuantizeArgs& args, std::int16_t* levels) {
  const element::QuantizeFactors factors = element::quantize_factors(args.scale, args.levels);
  std::uint32_t line[philox::line_elements];
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t place = (args.first + i) % philox::half_line_elements;
    if (i == 0 || place == 0) {
      philox::fill_line(args.seed, args.stream, (args.first + i) / philox::half_line_elements,
                        line);
    }
    const std::int32_t noise = Scalar::shift_right(upper_half(line, place), 16);
    levels[i] = static_cast<std::int16_t>(element::quantize<Scalar>(x[i], noise, factors));
  }
}

void dequantize(const std::int16_t* levels, std::size_t n, float step, float* out) {
  for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<float>(levels[i]) * step;
}

void hadamard(float* x, int log2_n) {
  const std::size_t n = std::size_t{1} << log2_n;
  for (std::size_t stride = 1; stride < n; stride *= 2) {
    for (std::size_t begin = 0; begin < n; begin += 2 * stride) {
      for (std::size_t i = begin; i < begin + stride; ++i) {
        const float a = x[i];
        const float b = x[i + stride];
        x[i] = a + b;
        x[i + stride] = a - b;
      }
    }
  }
}

void flip_signs(float* x, std::size_t n, float factor, std::uint64_t seed, std::uint64_t stream) {
  element::flip_signs(x, 0, n, factor, seed, stream);
}

double nearest(const float* x, std::size_t n, const Centroids& centroids, std::int16_t* levels) {
  double lanes[element::scan_lanes] = {};
  element::nearest(x, 0, n, centroids, levels, lanes);
  return element::add_lanes(lanes);
}

void centroids_of(const std::int16_t* levels, std::size_t n, const Centroids& centroids,
                  float* out) {
  for (std::size_t i = 0; i < n; ++i) {
    const int level = levels[i];
    out[i] = level < 0 ? -centroids.values[~level & 7] : centroids.values[level & 7];
  }
}

void dither_classes(std::size_t n, const DitherArgs& args, std::uint8_t* classes) {
  std::uint32_t line[philox::line_elements];
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t place = (args.first + i) % philox::half_line_elements;
    if (i == 0 || place == 0) {
      philox::fill_line(args.key, 0, (args.first + i) / philox::half_line_elements, line);
    }
    classes[i] = static_cast<std::uint8_t>(
        element::dither_class<Scalar>(upper_half(line, place), args.class_bits));
  }
}

std::int32_t dither(const float* x, std::size_t n, const DitherArgs& args, std::int16_t* levels,
                    std::uint8_t* classes) {
  if (classes != nullptr) dither_classes(n, args, classes);
  std::uint32_t line[philox::line_elements];
  std::int32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t place = (args.first + i) % philox::half_line_elements;
    if (i == 0 || place == 0) {
      philox::fill_line(args.key, 0, (args.first + i) / philox::half_line_elements, line);
    }
    const std::int32_t level =
        element::dither<Scalar>(x[i], upper_half(line, place), 1.0f / args.step);
    largest = std::max(largest, std::abs(level));
    levels[i] = static_cast<std::int16_t>(level);
  }
  return largest;
}

void undither(const std::int16_t* levels, std::size_t n, const DitherArgs& args, float* out) {
  std::uint32_t line[philox::line_elements];
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t place = (args.first + i) % philox::half_line_elements;
    if (i == 0 || place == 0) {
      philox::fill_line(args.key, 0, (args.first + i) / philox::half_line_elements, line);
    }
    out[i] = element::undither<Scalar>(levels[i], upper_half(line, place), args.step);
  }
}

std::int32_t round(const float* x, std::size_t n, float step, std::int16_t* levels) {
  std::int32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::int32_t level = element::round_level<Scalar>(x[i] * (1.0f / step));
    largest = std::max(largest, std::abs(level));
    levels[i] = static_cast<std::int16_t>(level);
  }
  return largest;
}

float dot(const float* x, const float* y, std::size_t n) {
  float lanes[element::dot_lanes] = {};
  std::size_t i = 0;
  for (; i + element::dot_lanes <= n; i += element::dot_lanes) {
    for (std::size_t lane = 0; lane < element::dot_lanes; ++lane) {
      lanes[lane] += x[i + lane] * y[i + lane];
    }
  }
  return element::finish_dot(x, y, i, n, lanes);
}

std::size_t find_at_least(const void* words, std::size_t n, std::uint32_t least,
                          std::uint32_t* indices) {
  const auto* const bytes = static_cast<const unsigned char*>(words);
  std::size_t found = 0;
  for (std::size_t i = 0; i < n; ++i) {
    std::uint32_t word;
    std::memcpy(&word, bytes + i * sizeof word, sizeof word);
    // If the index is not found, the next one overwrites it.
    indices[found] = static_cast<std::uint32_t>(i);
    found += (word & 0x7fffffff) >= least ? 1 : 0;
  }
  return found;
}

void optimizer_step(const StepVectors& vectors, std::size_t n, const StepArgs& args) {
  const auto at = [](const float* values, std::size_t i) {
    return values == nullptr ? 0.0f : values[i];
  };
  for (std::size_t i = 0; i < n; ++i) {
    element::StepValues<Scalar> x = {vectors.weights[i],   vectors.gradient[i],
                                     at(vectors.start, i), at(vectors.correction, i),
                                     at(vectors.first, i), at(vectors.second, i)};
    element::step<Scalar>(x, args, vectors.correction != nullptr);
    vectors.weights[i] = x.weight;
    vectors.gradient[i] = 0;
    if (vectors.first != nullptr) vectors.first[i] = x.first;
    if (vectors.second != nullptr) vectors.second[i] = x.second;
  }
}

void add_scaled(float* sum, const float* x, std::size_t n, float factor) {
  for (std::size_t i = 0; i < n; ++i) sum[i] += x[i] * factor;
}

}  // namespace

const Kernels scalar_row = {
    .name = "scalar",
    .to_half = to_half,
    .from_half = from_half,
    .to_bf16 = to_bf16,
    .from_bf16 = from_bf16,
    .scan = scan,
    .range = range,
    .pack_signs = pack_signs,
    .unpack_signs = unpack_signs,
    .add_rounded = add_rounded,
    .scale_fixed = scale_fixed,
    .random_words = random_words,
    .gaussian = gaussian,
    .quantize = quantize,
    .dequantize = dequantize,
    .hadamard = hadamard,
    .flip_signs = flip_signs,
    .nearest = nearest,
    .centroids_of = centroids_of,
    .dither = dither,
    .undither = undither,
    .dither_classes = dither_classes,
    .round = round,
    .dot = dot,
    .add_scaled = add_scaled,
    .optimizer_step = optimizer_step,
    .find_at_least = find_at_least,
    .count_symbols = count_symbols,
    .rans_encode = rans_encode_scalar,
    .rans_decode = rans_decode_scalar,
};

}  // namespace fl
