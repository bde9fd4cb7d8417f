// A device that does a codec's work where the vector lies. All bits are those of the CPU's rows
// (kernels.hpp).
//
// Blocks of the vector it rounds to levels and codes these with rANS (rans.hpp): what leaves the
// device is a tally of each block's levels, from which the caller makes frequencies, and then the
// streams. This is done in two slots, so that one batch is rounded while another's streams are
// copied and used. For a slot, in this order: start(), tallies(), code(), streams().
//
// Of whole vectors, or tensors of them, it selects the largest values (select.hpp), and it
// multiplies matrices with a few vectors (matrix.hpp). And it reads sketches (sketch.hpp).
//
// One thread at a time. No header of a device's tool kit is needed here. "There" is the device's
// memory.
#pragma once

#include "kernels/generic/matrix.hpp"
#include "kernels/generic/rans.hpp"
#include "kernels/generic/select.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fl {

inline constexpr std::int32_t device_levels_max = 127;
inline constexpr std::size_t device_alphabet = 2 * device_levels_max + 1;
inline constexpr std::size_t device_block_max = 65536;

inline constexpr std::size_t device_buckets_max = 256;

/// Of fewer values selecting and multiplying take longer than a CPU does: starts, waits, copies.
inline constexpr std::size_t device_elements_min = std::size_t{1} << 16;
/// Of so many values the largest are selected at a time.
inline constexpr std::size_t device_select_max = std::size_t{1} << 22;

enum class LevelRounding : std::uint8_t {
  nearest,     // As the table's round() with `step`.
  dither,      // As its dither() with DitherArgs{step, seed, 0, class_bits}.
  stochastic,  // As its quantize() of each `bucket` values, whose scale is their largest magnitude.
               // With `clip` no more than so many root mean squares of the block, the only bucket.
  fitted,      // Each `bucket` values to the nearest of 2 `levels` + 1 levels, of the scale that
               // nearest_scale.hpp finds (with more than its levels_max, of the largest |x|) over
               // `levels`; to 0 where the largest |x| is below its least_scale.
  sign,        // To 0 below 0, -1 above, 1 of a zero.
  rotated      // All device_block_max, made of norm 1, go through flip_signs() of (seed, 0) and
               // hadamard(), then the same of (seed, 1), divided by the root of their number; then
               // the first `split` as nearest() with centroids[0], the others with centroids[1].
};

/// A block of the vector, and how its values are rounded.
struct LevelBlock {
  std::uint64_t begin = 0;     // Its first value in the vector.
  std::uint32_t elements = 0;  // 1 to device_block_max.
  LevelRounding rounding = LevelRounding::nearest;
  /// The block is left alone unless the largest |x| is above 0, at least this,
  float least = 0;
  /// and at most this: at most 126.5 steps, where there is a step.
  float most = 0;
  std::uint64_t seed = 0;
  float step = 0;
  int class_bits = 0;  // Of dither, up to 3.
  // Of QuantizeArgs:
  std::int32_t levels = 0;   // Up to 127.
  std::uint32_t bucket = 1;  // There are at most device_buckets_max.
  std::uint64_t stream = 0;
  std::uint64_t first = 0;
  float clip = 0;  // 0: none.
  // Of rotated ones; with class_bits 1 the first `split` are class 0.
  std::uint32_t split = 0;
  std::uint32_t sent = 0;       // How many of the first ones count, `split` or all,
  bool sums_centroids = false;  // if their centroids' squares are wanted; these also in `product`.
  Centroids centroids[2] = {};
};

[[nodiscard]] FL_HOST_DEVICE constexpr std::size_t bucket_count(const LevelBlock& block) {
  return (block.elements + block.bucket - 1) / block.bucket;
}

/// How many values of sizes 1 to 4 have their sum taken.
inline constexpr std::size_t summed_levels = 4;

struct LevelTally {
  /// How often each level occurs in each of the 2^class_bits classes: level l of class c at
  /// c * device_alphabet + l + 127. The rest is 0.
  std::uint32_t counts[rans_classes_max * device_alphabet];
  std::uint32_t is_levelled;         // 0: the block was left alone; nothing else counts.
  float scales[device_buckets_max];  // Of the buckets, where it is stochastic, or fitted.
  /// Of |x| over the levels l and -l, at l - 1, where it is rounded to the nearest. Exact: such
  /// values lie between half a step and 4.5 steps, so 65,536 of them have at most 44 bits together.
  double sums[summed_levels];
  double magnitudes;  // Where it is rounded to signs: as pack_signs() returns.
  // Where it is rotated:
  double sum_squares;       // Of the values, as scan() has it.
  double product;           // What both nearest() return, added.
  double centroid_squares;  // The sum of squares of all values' centroids.
};

/// Symbols as in level_coder.hpp: (class >> class_drop) * (2 top + 1) + level + top.
struct LevelCode {
  std::uint16_t frequencies[rans_symbols_max];
  std::int32_t top;  // 0: this block is not coded.
  int class_drop;
  std::uint32_t bytes_max;  // A longer stream is not fetched.
  /// Above 0: no stream, but a bit each of so many of the first levels, level + top, the first one
  /// in the lowest bit.
  std::uint32_t packed;
};

/// Some rows of cells (kernels/generic/sketch.hpp), one after the other, from which elements are
/// read.
struct SketchBlock {
  std::uint64_t key;
  std::uint32_t rows;  // An odd number up to sketch::rows_max,
  std::uint32_t columns;
  std::uint32_t elements;     // up to device_block_max.
  std::uint32_t cells_begin;  // Its first cell, among those of all,
  std::uint32_t begin;        // and its first element.
};

class CodecDevice {
 public:
  static constexpr std::size_t slots = 2;
  static constexpr std::size_t batch_blocks_max = 64;

  virtual ~CodecDevice() = default;

  // 0, or an error that error_text() names, after which nothing counts of the slot, or of the call.

  /// At most batch_blocks_max blocks, of the vector, which lies in the device's memory and stays as
  /// it is until the tallies are there. Does not wait.
  [[nodiscard]] virtual int start(std::size_t slot, const float* vector,
                                  std::span<const LevelBlock> blocks) = 0;
  /// Waits for the tallies of the blocks, which are valid until the slot's next start().
  [[nodiscard]] virtual int tallies(std::size_t slot, std::span<const LevelTally>& out) = 0;
  /// One code for each of the blocks. Does not wait.
  [[nodiscard]] virtual int code(std::size_t slot, std::span<const LevelCode> codes) = 0;
  /// Waits for the streams: one for each of the blocks in `out`, empty where it was not coded, was
  /// too long, or has no bytes, as bytes[b] says: 0, more than bytes_max, or 0. Valid as above.
  [[nodiscard]] virtual int streams(std::size_t slot, std::span<std::span<const std::uint8_t>> out,
                                    std::span<const std::uint32_t>& bytes) = 0;

  // These wait.

  /// Copies a vector there, where it stays until the next is copied. Takes memory there for the
  /// longest vector, until the device goes.
  [[nodiscard]] virtual int copy(std::span<const float> vector, const float*& there) = 0;
  /// find_largest() of runs there, of fewer than 2^32 values.
  [[nodiscard]] virtual int find_largest(std::span<const std::span<const float>> there,
                                         std::uint64_t k, Cutoff& out) = 0;
  /// select_largest() of at most device_select_max values there. Replaces `indices`.
  [[nodiscard]] virtual int select_largest(std::span<const float> there, Cutoff& cutoff,
                                           std::vector<std::uint32_t>& indices) = 0;
  /// multiply() and multiply_transposed() of a matrix there; the other factors are here.
  [[nodiscard]] virtual int multiply(const float* there, const MatrixSizes& sizes,
                                     const float* right, float* left) = 0;
  [[nodiscard]] virtual int multiply_transposed(const float* there, const MatrixSizes& sizes,
                                                const float* left, float* right) = 0;

  /// What all elements of at most batch_blocks_max sketches are estimated at, from cells that are
  /// here, as are the estimates.
  [[nodiscard]] virtual int estimate(std::span<const SketchBlock> sketches,
                                     std::span<const float> cells, std::span<float> estimates) = 0;

  [[nodiscard]] virtual const char* error_text(int error) const = 0;
};

}  // namespace fl
