// Arithmetic on runs of numbers, as tables of plain functions: one row per instruction set, all
// rows with the same bits for the same input. This folder knows no other folder.
//
// Every function is pure: any thread, no allocation, no alignment beyond the element's, n may be 0,
// input and output must not overlap. Nothing is checked here: what a caller must have checked is
// said below.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fl {

namespace rans {
struct Code;
}  // namespace rans

/// What scan() finds in one pass.
struct Scan {
  float max_abs = 0;
  /// Of the squares in double, which are exact: element i is added to lane i % 16, the lanes are
  /// added as a binary tree, so the sum does not depend on the row.
  double sum_squares = 0;
  /// Index of the first NaN or infinity, or n. When it is not n the two numbers above are 0.
  std::size_t first_bad = 0;
};

struct Range {
  float min = 0;
  float max = 0;
};

/// How quantize() rounds. Element i of the run is element first + i of the random stream.
struct QuantizeArgs {
  float scale;          // > 0, finite. An x beyond it counts as scale, or -scale.
  std::int32_t levels;  // S: 1 to 32767; x becomes an integer in [-S, S].
  std::uint64_t seed;
  std::uint64_t stream;
  std::uint64_t first;
};

/// What nearest() rounds to: a table that is symmetric about 0, of which this is the positive half.
struct Centroids {
  int count;            // 1 to 8.
  float values[8];      // The first `count`, ascending.
  float thresholds[7];  // count - 1: from thresholds[i] on, values[i + 1] is taken. All > 0.
};

/// How dither() and undither() round, and the classes of the dither's size.
struct DitherArgs {
  float step;  // 2^-126 to 2^121, so that 1 / step and 127.5 steps are finite.
  std::uint64_t key;
  std::uint64_t first = 0;  // The dither of element i of the run is a function of (key, first + i).
  int class_bits = 0;       // Up to 7: of 2^class_bits classes.
};

struct Kernels {
  const char* name;

  /// IEEE binary16, to nearest even. Too large becomes infinity, NaN stays (a quiet) NaN.
  void (*to_half)(const float* x, std::size_t n, std::uint16_t* out);
  void (*from_half)(const std::uint16_t* x, std::size_t n, float* out);

  /// bfloat16, the upper half of a float, to nearest even. Too large becomes infinity; no x is NaN.
  void (*to_bf16)(const float* x, std::size_t n, std::uint16_t* out);
  void (*from_bf16)(const std::uint16_t* x, std::size_t n, float* out);

  Scan (*scan)(const float* x, std::size_t n);
  /// n >= 1, no x is NaN. A zero of either sign comes back as +0.
  Range (*range)(const float* x, std::size_t n);

  /// One bit for each x: 1 for x < 0, 0 for zeros of both signs; the first in the lowest bit of the
  /// first byte, zeros to a whole byte. Returns the sum of |x|, added like Scan::sum_squares (but
  /// not exact). No x is NaN.
  double (*pack_signs)(const float* x, std::size_t n, std::uint8_t* out);
  /// out[i] = -scale where the bit is 1, else scale.
  void (*unpack_signs)(const std::uint8_t* packed, std::size_t n, float scale, float* out);

  /// sum[i] += weight * round(x[i] * 2^fraction_bits), to nearest even, modulo 2^64: a second call
  /// with -weight restores the sums exactly. |x[i]| * 2^fraction_bits < 2^51, |weight| < 2^32.
  void (*add_fixed)(std::int64_t* sum, const float* x, std::size_t n, int fraction_bits,
                    std::int64_t weight);
  /// out[i] = float(double(sum[i]) * factor), each of the three steps to nearest even.
  void (*scale_fixed)(const std::int64_t* sum, std::size_t n, double factor, float* out);

  /// out[i] = the word of element i of the Philox stream (philox.hpp).
  void (*random_words)(std::uint64_t seed, std::uint64_t stream, std::uint32_t* out, std::size_t n);
  /// Standard normal values: out[i] is a function of (seed, stream, first + i) alone. Box and
  /// Muller 1958 on Philox words, |value| < 6.7; log, sine and cosine are our own polynomials.
  void (*gaussian)(std::uint64_t seed, std::uint64_t stream, std::uint64_t first, float* out,
                   std::size_t n);

  /// Stochastic rounding to levels (QSGD, Alistarh 2017, section 3.1): x / scale * S, to the
  /// nearest 2^-16, is rounded up with a probability equal to its fraction, else down. So the mean
  /// is off by 2^-17 of a level, and by what fp32 can't say of x / scale * S, at most. |x| >= scale
  /// always gives S. Element i has 16 random bits (philox.hpp, half_word_at).
  void (*quantize)(const float* x, std::size_t n, const QuantizeArgs& args, std::int16_t* levels);
  /// out[i] = float(levels[i]) * step.
  void (*dequantize)(const std::int16_t* levels, std::size_t n, float step, float* out);

  /// The Walsh-Hadamard transform of 2^log2_n values, in place and without a factor: for strides of
  /// 1, 2, 4 and so on, the two values a and b that are so far apart become a + b and a - b.
  void (*hadamard)(float* x, int log2_n);
  /// In place: x[i] * factor, with the other sign where bit i % 32 of word i / 32 of the Philox
  /// stream is 1.
  void (*flip_signs)(float* x, std::size_t n, float factor, std::uint64_t seed,
                     std::uint64_t stream);
  /// The level of the centroid that |x| takes: its index m, or -1 - m where x is negative (-0 too).
  /// Returns the inner product of x and its centroids, added like Scan::sum_squares (but not
  /// exact). All x are finite.
  double (*nearest)(const float* x, std::size_t n, const Centroids& centroids,
                    std::int16_t* levels);
  /// out[i] = the centroid of the level, of whose m the lowest three bits count.
  void (*centroids_of)(const std::int16_t* levels, std::size_t n, const Centroids& centroids,
                       float* out);

  /// Subtractive dither (Ziv 1985, Zamir and Feder 1992): |u| < 1/2 is symmetric and uniform, of 16
  /// bits, and levels[i] = round(x / step + u), past the range of int16 its end. Where u < 0 both
  /// signs are turned, x's and the level's: then levels are less evenly distributed, and shorter
  /// when coded. Returns the largest |level|. `classes`, unless nullptr: as dither_classes().
  std::int32_t (*dither)(const float* x, std::size_t n, const DitherArgs& args,
                         std::int16_t* levels, std::uint8_t* classes);
  /// The reverse: out[i] = (levels[i] - u) * step, signs turned back.
  void (*undither)(const std::int16_t* levels, std::size_t n, const DitherArgs& args, float* out);
  /// Which of the classes of equal width |u| lies in, 0 the smallest. The step does not matter.
  void (*dither_classes)(std::size_t n, const DitherArgs& args, std::uint8_t* classes);
  /// levels[i] = round(x / step), to the nearest, past the range of int16 its end; `step` as above.
  /// Returns the largest |level|.
  std::int32_t (*round)(const float* x, std::size_t n, float step, std::int16_t* levels);

  /// The sum of x[i] * y[i]: element i is added to lane i % 32 in fp32, the lanes are added as a
  /// binary tree.
  float (*dot)(const float* x, const float* y, std::size_t n);
  /// sum[i] += x[i] * factor, product and sum each rounded.
  void (*add_scaled)(float* sum, const float* x, std::size_t n, float factor);

  /// Writes the indices, ascending, of those of n 32-bit words whose lowest 31 bits are at least
  /// `least`: of floats, by magnitude. Returns how many; what is behind them in `indices`, which
  /// has room for n, may be written over. n <= 2^32, least < 2^31.
  std::size_t (*find_at_least)(const void* words, std::size_t n, std::uint32_t least,
                               std::uint32_t* indices);

  /// counts[s] = how often s occurs, for the 256 values of s; n < 2^32.
  void (*count_symbols)(const std::uint8_t* symbols, std::size_t n, std::uint32_t* counts);
  /// The whole steps of rans_encode and rans_decode (rans.hpp), which are what to call: n is a
  /// multiple of 32, states are 32, codes 256, places 2^12 for each class; no classes: nullptr. The
  /// encoder goes from the last symbol to the first and writes its words down from `out`, and up to
  /// 16 bytes of anything below them; it returns where they begin. The decoder returns how far it
  /// read, nullptr if words are missing.
  std::uint8_t* (*rans_encode)(const rans::Code* codes, const std::uint8_t* symbols, std::size_t n,
                               std::uint32_t* states, std::uint8_t* out);
  const std::uint8_t* (*rans_decode)(const std::uint32_t* places, const std::uint8_t* classes,
                                     std::uint32_t* states, const std::uint8_t* in,
                                     const std::uint8_t* end, std::uint8_t* symbols, std::size_t n);
};

/// The rows that this machine can run, plainest ("scalar") first, best last.
[[nodiscard]] std::span<const Kernels* const> all_kernels();

/// The row to use: the best, or the one that the environment variable FL_KERNELS names. A name that
/// this machine does not have ends the program at first use: whoever forces a row wants to know.
[[nodiscard]] const Kernels& kernels();

/// By its scan().
[[nodiscard]] inline bool all_finite(std::span<const float> values) {
  return kernels().scan(values.data(), values.size()).first_bad == values.size();
}

/// For tests: from now on kernels() is this row, for all threads.
void force_kernels(const Kernels& row);

}  // namespace fl
