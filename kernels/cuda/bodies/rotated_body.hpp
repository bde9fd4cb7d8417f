// SPDX-License-Identifier: Apache-2.0
// What a CodecDevice (kernels/codec_device.hpp) does with blocks that are rotated before rounding.
// rotate_body.hpp has the rotation itself.
#pragma once

#include "kernels/codec_device.hpp"
#include "kernels/cuda/bodies/scan_body.hpp"
#include "kernels/cuda/cuda_rotate.hpp"

namespace fl::cuda {

/// A block's rotation.
struct Rotation {
  float* values;  // device_block_max of them; they are rotated in place.
  SignFlip* first;
  SignFlip* second;
  double* sum_squares;  // The sum over the values before the rotation.
};

static_assert(device_block_max == 1 << 16);
inline constexpr int rotated_log2 = 16;
inline constexpr float rotated_factor = 0x1p-8f;  // 1 / sqrt(device_block_max).

/// Copies the block's values to out.values, and finds the factor that makes their norm 1. Does
/// nothing if the block is not to be rotated.
template <class Block>
FL_DEVICE inline void begin_rotation(const Block& block, const float* vector, const LevelBlock& run,
                                     const Rotation& out, ScanMemory& shared) {
  if (run.rounding != LevelRounding::rotated) return;
  const auto copy = [&](unsigned thread, std::size_t begin, std::size_t count) {
    for (std::size_t i = thread; i < count; i += Block::threads)
      out.values[begin + i] = shared.values[i];
  };
  sum_in_order(block, vector + run.begin, run.elements, shared, copy, SquareOf{});
  block.each([&](unsigned thread) {
    if (thread != 0) return;
    *out.sum_squares = shared.lanes[0];
    *out.first = {.factor = element::unit_factor(shared.lanes[0]), .seed = run.seed, .stream = 0};
    *out.second = {.factor = rotated_factor, .seed = run.seed, .stream = 1};
  });
}

/// The shared memory of sum_rotated().
struct RotatedMemory {
  std::int32_t below[2][7];  // The argument of element::nearest() for each table.
  double product;
  double centroid_squares;
};

/// The centroid that rotated value i takes.
FL_DEVICE inline element::NearestCentroid centroid_of(float x, std::size_t i, const LevelBlock& run,
                                                      const RotatedMemory& shared) {
  const int half = i < run.split ? 0 : 1;
  return element::nearest_centroid(x, run.centroids[half], shared.below[half]);
}

/// Fills `out`. x is the rotated block.
template <class Block>
FL_DEVICE inline void sum_rotated(const Block& block, const float* x, const LevelBlock& run,
                                  RotatedMemory& out, ScanMemory& shared) {
  block.each([&](unsigned thread) {
    if (thread < 2) element::find_below(run.centroids[thread], out.below[thread]);
  });
  const auto look_at_nothing = [](unsigned, std::size_t, std::size_t) {};
  for (int half = 0; half < 2; ++half) {
    const std::size_t begin = half == 0 ? 0 : run.split;
    const bool is_left_out = run.sums_centroids && begin >= run.sent;
    const std::size_t count = half == 0 ? run.split : is_left_out ? 0 : run.elements - run.split;
    sum_in_order(block, x + begin, count, shared, look_at_nothing, [&](float value, std::size_t i) {
      return centroid_of(value, begin + i, run, out).product();
    });
    block.each([&](unsigned thread) {
      if (thread == 0) out.product = half == 0 ? shared.lanes[0] : out.product + shared.lanes[0];
    });
  }
  if (!run.sums_centroids) return;
  sum_in_order(block, x, run.sent, shared, look_at_nothing, [&](float value, std::size_t i) {
    const double centroid = centroid_of(value, i, run, out).centroid;
    return centroid * centroid;
  });
  block.each([&](unsigned thread) {
    if (thread == 0) out.centroid_squares = shared.lanes[0];
  });
}

}  // namespace fl::cuda
