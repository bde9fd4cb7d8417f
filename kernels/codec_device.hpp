// SPDX-License-Identifier: Apache-2.0
// A device that does a codec's work on a vector in its own memory. All results have the bits of the
// CPU's rows (kernels.hpp).
//
// - It rounds blocks of the vector to levels and codes them with rANS (generic/rans.hpp). First the
//   caller gets a tally of each block's levels and makes frequencies from it; then it gets the
//   streams. A batch has as many blocks as the device has memory for, mostly all of an update:
//   each block keeps few threads busy. For the vectors that are larger there are two slots, so that
//   the device rounds one batch while the streams of the other are copied and used. For each batch
//   a slot is called in this order: start(), tallies(), code(), streams().
// - It selects the largest values of whole vectors or tensors (generic/select.hpp).
// - It multiplies matrices with a few vectors (generic/matrix.hpp).
//
// One thread at a time. This header needs none of a device's tool kit. "There" means in the
// device's memory.
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

/// With fewer values a CPU selects and multiplies faster than the device starts, waits and copies.
inline constexpr std::size_t device_elements_min = std::size_t{1} << 16;
/// The most values of one select_largest().
inline constexpr std::size_t device_select_max = std::size_t{1} << 22;

/// How a block is rounded. "Like" means: with the same result as that function of Kernels.
enum class LevelRounding : std::uint8_t {
  /// Like round() with `step`.
  nearest,
  /// Like dither() with DitherArgs{step, seed, 0, class_bits}.
  dither,
  /// Like quantize(), for each bucket with its largest |x| as the scale. If `clip` > 0, the block
  /// is one bucket, and its scale is at most `clip` times its root mean square.
  stochastic,
  /// Each bucket to the nearest of 2 * levels + 1 levels, scale / levels apart. The scale is what
  /// generic/nearest_scale.hpp finds, or the bucket's largest |x| if `levels` is above its
  /// levels_max. If the largest |x| is below its least_scale, all values become 0.
  fitted,
  /// Level 0 for x < 0, -1 for x > 0, 1 for a zero.
  sign,
  /// The block has device_block_max values. They are scaled to norm 1 and go through flip_signs()
  /// with (seed, 0), hadamard(), flip_signs() with (seed, 1) and hadamard(), and are divided by the
  /// root of their number. Then the first `split` are rounded like nearest() with centroids[0], the
  /// others with centroids[1].
  rotated
};

/// A block of the vector, and how its values are rounded.
struct LevelBlock {
  std::uint64_t begin = 0;     // The block's first value in the vector.
  std::uint32_t elements = 0;  // 1 to device_block_max.
  LevelRounding rounding = LevelRounding::nearest;
  /// The device rounds the block only if its largest |x| is above 0 and from `least` to `most`. If
  /// the rounding uses a step, `most` is at most 126.5 steps.
  float least = 0;
  float most = 0;
  std::uint64_t seed = 0;
  float step = 0;
  int class_bits = 0;  // For dither, 0 to 3.
  // For stochastic and fitted; `levels`, `stream` and `first` as in QuantizeArgs:
  std::int32_t levels = 0;   // 1 to 127.
  std::uint32_t bucket = 1;  // Values in a bucket. A block has at most device_buckets_max buckets.
  std::uint64_t stream = 0;
  std::uint64_t first = 0;
  float clip = 0;  // 0: no clipping.
  // For rotated. With class_bits 1 the first `split` values are class 0, the others class 1.
  std::uint32_t split = 0;
  std::uint32_t sent = 0;       // How many of the first values are sent: `split`, or all.
  bool sums_centroids = false;  // Whether LevelTally::centroid_squares is wanted. Then it and
                                // `product` cover the sent values only.
  Centroids centroids[2] = {};
};

[[nodiscard]] FL_HOST_DEVICE constexpr std::size_t bucket_count(const LevelBlock& block) {
  return (block.elements + block.bucket - 1) / block.bucket;
}

/// LevelTally::sums has the levels with |level| from 1 to this.
inline constexpr std::size_t summed_levels = 4;

/// The device's results for a block that it rounded.
struct LevelTally {
  /// How often each level occurs in each of the 2^class_bits classes: level l of class c is at
  /// c * device_alphabet + l + 127. The rest is 0.
  std::uint32_t counts[rans_classes_max * device_alphabet];
  std::uint32_t is_levelled;         // 0: the block was not rounded; all else has no meaning.
  float scales[device_buckets_max];  // For stochastic and fitted: the scale of each bucket.
  /// For nearest: sums[l - 1] is the sum of |x| over the levels l and -l. It is exact: such values
  /// are between half a step and 4.5 steps, so a sum of 65,536 has at most 44 bits.
  double sums[summed_levels];
  double magnitudes;  // For sign: the result of pack_signs().
  // For rotated:
  double sum_squares;       // The sum of the values' squares, as in Scan.
  double product;           // The sum of the results of both nearest().
  double centroid_squares;  // With sums_centroids: the sum of the sent values' squared centroids.
};

/// How a block's levels are coded. The symbol of a level is
/// (class >> class_drop) * (2 top + 1) + level + top, as in shared/codec/entropy/level_coder.hpp.
struct alignas(16) LevelCode {  // So that its frequencies are loaded 16 bytes at a time.
  std::uint16_t frequencies[rans_symbols_max];
  std::int32_t top;  // The largest |level|. 0: the block is not coded.
  int class_drop;
  std::uint32_t bytes_max;  // A longer stream is not fetched.
  /// Above 0: instead of a stream, the first `packed` levels are sent as one bit each, level + top.
  /// The first is the lowest bit.
  std::uint32_t packed;
};

/// Every function that returns an int returns 0, or an error that error_text() explains. After an
/// error the results of the slot, or of the call, have no meaning.
class CodecDevice {
 public:
  static constexpr std::size_t slots = 2;

  virtual ~CodecDevice() = default;

  /// The most blocks of a start(); always the same.
  [[nodiscard]] virtual std::size_t batch_blocks() const = 0;

  /// Starts to round at most batch_blocks() blocks of a vector there. The vector must not change
  /// until tallies() has returned. Does not wait for the rounding.
  [[nodiscard]] virtual int start(std::size_t slot, const float* vector,
                                  std::span<const LevelBlock> blocks) = 0;
  /// Waits for the tallies, one for each block. They are valid until the slot's next start().
  [[nodiscard]] virtual int tallies(std::size_t slot, std::span<const LevelTally>& out) = 0;
  /// Starts to code the blocks; there is one code for each. Does not wait.
  [[nodiscard]] virtual int code(std::size_t slot, std::span<const LevelCode> codes) = 0;
  /// Waits for the streams, one for each block. bytes[b] is the length of stream b. out[b] is empty
  /// if the block was not coded or its stream has no bytes (then bytes[b] is 0), or if the stream
  /// is too long (then bytes[b] is above bytes_max). Both are valid until the slot's next start().
  [[nodiscard]] virtual int streams(std::size_t slot, std::span<std::span<const std::uint8_t>> out,
                                    std::span<const std::uint32_t>& bytes) = 0;

  // All functions below wait for their results.

  /// Copies a vector there. It stays until the next copy(). The device keeps memory for the longest
  /// vector so far, until it is destroyed.
  [[nodiscard]] virtual int copy(std::span<const float> vector, const float*& there) = 0;
  /// find_largest() of runs there, with fewer than 2^32 values in all.
  [[nodiscard]] virtual int find_largest(std::span<const std::span<const float>> there,
                                         std::uint64_t k, Cutoff& out) = 0;
  /// select_largest() of at most device_select_max values there. Replaces `indices`.
  [[nodiscard]] virtual int select_largest(std::span<const float> there, Cutoff& cutoff,
                                           std::vector<std::uint32_t>& indices) = 0;
  /// multiply() and multiply_transposed() of a matrix there. The other factors and the results are
  /// in the host's memory.
  [[nodiscard]] virtual int multiply(const float* there, const MatrixSizes& sizes,
                                     const float* right, float* left) = 0;
  [[nodiscard]] virtual int multiply_transposed(const float* there, const MatrixSizes& sizes,
                                                const float* left, float* right) = 0;

  /// What an error means. The text is static.
  [[nodiscard]] virtual const char* error_text(int error) const = 0;
};

}  // namespace fl
