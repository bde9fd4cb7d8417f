// SPDX-License-Identifier: Apache-2.0
// Arithmetic on runs of numbers. Each instruction set has a row: a table of plain functions. All
// rows give the same bits for the same input. This folder includes no other folder.
//
// Every function is pure and allocates nothing; any thread may call it. Pointers need no more
// alignment than the element's type. n may be 0. Input and output must not overlap. Nothing is
// checked here: the caller must ensure what is required below.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fl {

namespace rans {
struct Code;
}  // namespace rans

/// The result of scan().
struct Scan {
  float max_abs = 0;
  /// The sum of the squares, which are exact in double. Element i is added to lane i % 16, and the
  /// lanes are added as a binary tree, so that all rows get the same sum.
  double sum_squares = 0;
  /// The index of the first NaN or infinity, or n. If it is not n, the two numbers above are 0.
  std::size_t first_bad = 0;
};

/// The result of range().
struct Range {
  float min = 0;
  float max = 0;
};

/// How quantize() rounds. Element i of the run uses element first + i of the random stream.
struct QuantizeArgs {
  float scale;          // > 0 and finite. x is clamped to [-scale, scale].
  std::int32_t levels;  // S, 1 to 32767. x becomes an integer in [-S, S].
  std::uint64_t seed;
  std::uint64_t stream;
  std::uint64_t first;
};

/// The centroids that nearest() rounds to. The table is symmetric about 0; this is its positive
/// half.
struct Centroids {
  int count;            // 1 to 8.
  float values[8];      // The first `count`, ascending.
  float thresholds[7];  // The first count - 1, > 0: |x| >= thresholds[i] takes values[i + 1].
};

/// How dither() and undither() round, and how many classes dither_classes() tells apart.
struct DitherArgs {
  float step;  // 2^-126 to 2^121, so that 1 / step and 127.5 steps are finite.
  std::uint64_t key;
  std::uint64_t first = 0;  // The dither of element i of the run is a function of (key, first + i).
  int class_bits = 0;       // 0 to 7. There are 2^class_bits classes.
};

/// The vectors that optimizer_step() reads and changes. Those that a step does not use may be null.
struct StepVectors {
  float* weights = nullptr;
  float* gradient = nullptr;          // Set to 0.
  const float* start = nullptr;       // For StepArgs::proximal.
  const float* correction = nullptr;  // Added to the gradient.
  float* first = nullptr;             // Momentum, or Adam's first moment.
  float* second = nullptr;            // Adam's second moment.

  /// The vectors from element i on.
  [[nodiscard]] StepVectors from(std::size_t i) const {
    const auto at = [i](auto* x) { return x == nullptr ? x : x + i; };
    return {weights + i, gradient + i, at(start), at(correction), at(first), at(second)};
  }
};

/// How optimizer_step() changes weights.
struct StepArgs {
  enum class Rule : std::uint8_t { sgd, momentum, nesterov, adam };
  Rule rule = Rule::sgd;
  float lr = 0;        // With Adam the learning rate divided by the first moment's bias correction.
  float shrink = 1;    // The weights are multiplied by this first (AdamW's weight decay).
  float decay = 0;     // The weights times this are added to the gradient.
  float proximal = 0;  // The weights' distance from the start, times this, too.
  float beta1 = 0;     // The momentum, or Adam's beta1 and beta2.
  float beta2 = 0;
  float own1 = 0;  // 1 - beta1 and 1 - beta2.
  float own2 = 0;
  float root_bias2 = 1;  // The square root of the second moment's bias correction.
  float epsilon = 0;
};

/// One row.
struct Kernels {
  const char* name;

  /// IEEE binary16, rounded to nearest even. Too large a number becomes infinity. NaN becomes a
  /// quiet NaN.
  void (*to_half)(const float* x, std::size_t n, std::uint16_t* out);
  void (*from_half)(const std::uint16_t* x, std::size_t n, float* out);

  /// bfloat16, the upper half of a float, rounded to nearest even. Too large a number becomes
  /// infinity. Requires: no x is NaN.
  void (*to_bf16)(const float* x, std::size_t n, std::uint16_t* out);
  void (*from_bf16)(const std::uint16_t* x, std::size_t n, float* out);

  /// One pass over x, which may have any values.
  Scan (*scan)(const float* x, std::size_t n);
  /// The smallest and the largest x; a zero of either sign is returned as +0. Requires: n >= 1, no
  /// x is NaN.
  Range (*range)(const float* x, std::size_t n);

  /// One bit for each x: 1 for x < 0, else 0, also for -0. The first is the lowest bit of the first
  /// byte; the last byte is filled with zeros. Returns the sum of |x|, added in the order of
  /// Scan::sum_squares (but not exact). Requires: no x is NaN.
  double (*pack_signs)(const float* x, std::size_t n, std::uint8_t* out);
  /// out[i] = -scale if bit i is 1, else scale.
  void (*unpack_signs)(const std::uint8_t* packed, std::size_t n, float scale, float* out);

  /// sum[i] += round(x[i] * factor), the product in double, rounded to the nearest even integer,
  /// added modulo 2^64. So a second call with -factor restores the sums exactly. Requires:
  /// |x[i] * factor| <= 2^62.
  void (*add_rounded)(std::int64_t* sum, const float* x, std::size_t n, double factor);
  /// out[i] = float(double(sum[i]) * factor), each of the three steps rounded to nearest
  /// even.
  void (*scale_fixed)(const std::int64_t* sum, std::size_t n, double factor, float* out);

  /// out[i] = the word of element i of the Philox stream (generic/philox.hpp).
  void (*random_words)(std::uint64_t seed, std::uint64_t stream, std::uint32_t* out, std::size_t n);
  /// Standard normal values, |value| < 6.7. out[i] depends on (seed, stream, first + i) alone. Box
  /// and Muller 1958 on Philox words; log, sine and cosine are our own polynomials, because those
  /// of libraries differ in their last bits.
  void (*gaussian)(std::uint64_t seed, std::uint64_t stream, std::uint64_t first, float* out,
                   std::size_t n);

  /// Stochastic rounding to levels (QSGD, Alistarh 2017, section 3.1). x / scale * S is rounded to
  /// the nearest 2^-16, and then up with a probability equal to its fraction, else down. So the
  /// mean error is at most 2^-17 of a level plus the fp32 rounding error of x / scale * S. |x| >=
  /// scale always gives S or -S. Element i uses 16 random bits (half_word_at() of
  /// generic/philox.hpp).
  void (*quantize)(const float* x, std::size_t n, const QuantizeArgs& args, std::int16_t* levels);
  /// out[i] = float(levels[i]) * step.
  void (*dequantize)(const std::int16_t* levels, std::size_t n, float step, float* out);

  /// The Walsh-Hadamard transform of 2^log2_n values, in place and not normalized: for strides 1,
  /// 2, 4 and so on, each pair a and b at this distance becomes a + b and a - b.
  void (*hadamard)(float* x, int log2_n);
  /// In place: x[i] * factor, negated if bit i % 32 of word i / 32 of the Philox stream is 1.
  void (*flip_signs)(float* x, std::size_t n, float factor, std::uint64_t seed,
                     std::uint64_t stream);
  /// The level of each x: the index m of the centroid that |x| takes, or -1 - m if x is negative
  /// (also for -0). Returns the inner product of x and its centroids, added in the order of
  /// Scan::sum_squares (but not exact). Requires: all x are finite.
  double (*nearest)(const float* x, std::size_t n, const Centroids& centroids,
                    std::int16_t* levels);
  /// out[i] = the centroid of levels[i]. Only the lowest three bits of its m count.
  void (*centroids_of)(const std::int16_t* levels, std::size_t n, const Centroids& centroids,
                       float* out);

  /// Subtractive dither (Ziv 1985; Zamir and Feder 1992). u is uniform in (-1/2, 1/2), with 16
  /// random bits. levels[i] = round(x / step + u), clamped to [-32767, 32767], and negated if u <
  /// 0. This makes the distribution of the levels less even, so they are shorter when coded.
  /// Returns the largest |level|. `classes` gets what dither_classes() writes, unless it is
  /// nullptr.
  std::int32_t (*dither)(const float* x, std::size_t n, const DitherArgs& args,
                         std::int16_t* levels, std::uint8_t* classes);
  /// Undoes dither(): out[i] = (levels[i] - |u|) * step, negated if u < 0.
  void (*undither)(const std::int16_t* levels, std::size_t n, const DitherArgs& args, float* out);
  /// The class of each |u|, in classes of equal width; class 0 has the smallest. The step does not
  /// matter.
  void (*dither_classes)(std::size_t n, const DitherArgs& args, std::uint8_t* classes);
  /// levels[i] = round(x / step), to the nearest, clamped to [-32767, 32767]. `step` has the range
  /// of DitherArgs::step. Returns the largest |level|.
  std::int32_t (*round)(const float* x, std::size_t n, float step, std::int16_t* levels);

  /// The sum of x[i] * y[i] in fp32. Element i is added to lane i % 32, and the lanes are added as
  /// a binary tree.
  float (*dot)(const float* x, const float* y, std::size_t n);
  /// sum[i] += x[i] * factor, product and sum each rounded.
  void (*add_scaled)(float* sum, const float* x, std::size_t n, float factor);

  /// A step of an optimizer, of each element by itself: SGD with or without momentum (Sutskever et
  /// al. 2013, also Nesterov's, as in PyTorch) or Adam (Kingma and Ba 2015, algorithm 1). In place.
  void (*optimizer_step)(const StepVectors& vectors, std::size_t n, const StepArgs& args);

  /// Writes the indices, ascending, of the words (n, of 32 bits) whose lowest 31 bits are at least
  /// `least`. For floats these bits order by magnitude. Returns how many indices. `indices` has
  /// room for n, and all of it may be overwritten. Requires: n <= 2^32, least < 2^31.
  std::size_t (*find_at_least)(const void* words, std::size_t n, std::uint32_t least,
                               std::uint32_t* indices);

  /// counts[s] = how often symbol s occurs, for all 256 values of s. Requires: n < 2^32.
  void (*count_symbols)(const std::uint8_t* symbols, std::size_t n, std::uint32_t* counts);
  /// The inner loops of rans_encode() and rans_decode() in generic/rans.hpp; call those instead.
  /// n is a multiple of 32. There are 32 states, 256 codes, and 2^12 places for each class.
  /// `classes` is nullptr if there is one class. The encoder goes from the last symbol to the
  /// first. It writes its words downwards from `out`, may overwrite 16 bytes below them, and
  /// returns where they begin. The decoder returns where it stopped reading, or nullptr if words
  /// are missing.
  std::uint8_t* (*rans_encode)(const rans::Code* codes, const std::uint8_t* symbols, std::size_t n,
                               std::uint32_t* states, std::uint8_t* out);
  const std::uint8_t* (*rans_decode)(const std::uint32_t* places, const std::uint8_t* classes,
                                     std::uint32_t* states, const std::uint8_t* in,
                                     const std::uint8_t* end, std::uint8_t* symbols, std::size_t n);
};

/// The rows that this machine can run: "scalar" first, the fastest last.
[[nodiscard]] std::span<const Kernels* const> all_kernels();

/// The row to use: the fastest, or the one that the environment variable FL_KERNELS names. If this
/// machine has no row of that name, the first call prints the names that it has and ends the
/// program with exit code 2.
[[nodiscard]] const Kernels& kernels();

/// Whether no value is NaN or infinite.
[[nodiscard]] inline bool all_finite(std::span<const float> values) {
  return kernels().scan(values.data(), values.size()).first_bad == values.size();
}

/// For tests: from now on kernels() returns this row, in all threads.
void force_kernels(const Kernels& row);

}  // namespace fl
