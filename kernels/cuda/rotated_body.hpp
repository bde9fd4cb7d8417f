// What a CodecDevice does of blocks that are rotated before they are rounded (codec_device.hpp),
// besides the rotation (rotate_body.hpp).
#pragma once

#include "kernels/codec_device.hpp"
#include "kernels/cuda/cuda_rotate.hpp"
#include "kernels/cuda/scan_body.hpp"

#include <cmath>

namespace fl::cuda {

/// Where a block's rotation lies, and what it takes.
struct Rotation {
  float* values;  // device_block_max of them.
  SignFlip* first;
  SignFlip* second;
  double* sum_squares;
};

static_assert(device_block_max == 1 << 16);
inline constexpr int rotated_log2 = 16;
inline constexpr float rotated_factor = 0x1p-8f;  // 1 / sqrt(device_block_max).

/// Copies the block's values to where they are rotated, and finds what makes their norm 1. Nothing
/// of a block that is not to be rotated.
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
    const double sum = shared.lanes[0];
    const double norm = std::sqrt(sum);
    const double inverse = 1 / (norm < 0x1p-126 ? 0x1p-126 : norm);
    *out.sum_squares = sum;
    *out.first = {.factor = static_cast<float>(inverse), .seed = run.seed, .stream = 0};
    *out.second = {.factor = rotated_factor, .seed = run.seed, .stream = 1};
  });
}

/// Which centroid of its half a rotated value takes.
struct NearestCentroid {
  const Centroids* of;
  std::int32_t m;
  bool is_negative;

  FL_DEVICE NearestCentroid(float x, const Centroids& centroids) : of(&centroids), m(0) {
    const std::int32_t bits = element::Scalar::bits(x);
    is_negative = bits < 0;
    for (int i = 0; i + 1 < centroids.count; ++i) {
      if ((bits & 0x7fffffff) >= element::Scalar::bits(centroids.thresholds[i])) ++m;
    }
  }
  [[nodiscard]] FL_DEVICE std::int32_t level() const { return is_negative ? -1 - m : m; }
  [[nodiscard]] FL_DEVICE double value() const { return static_cast<double>(of->values[m]); }
};

struct RotatedSums {
  double product;
  double centroid_squares;
};

template <class Block>
FL_DEVICE inline void sum_rotated(const Block& block, const float* x, const LevelBlock& run,
                                  RotatedSums& out, ScanMemory& shared) {
  const auto look_at_nothing = [](unsigned, std::size_t, std::size_t) {};
  for (int half = 0; half < 2; ++half) {
    const std::size_t begin = half == 0 ? 0 : run.split;
    const std::size_t count = half == 0 ? run.split : run.elements - run.split;
    const Centroids& centroids = run.centroids[half];
    sum_in_order(block, x + begin, count, shared, look_at_nothing, [&](float value, std::size_t) {
      const NearestCentroid nearest(value, centroids);
      return static_cast<double>(nearest.is_negative ? -value : value) * nearest.value();
    });
    block.each([&](unsigned thread) {
      if (thread == 0) out.product = half == 0 ? shared.lanes[0] : out.product + shared.lanes[0];
    });
  }
  if (!run.sums_centroids) return;
  sum_in_order(block, x, run.elements, shared, look_at_nothing, [&](float value, std::size_t i) {
    const double centroid = NearestCentroid(value, run.centroids[i < run.split ? 0 : 1]).value();
    return centroid * centroid;
  });
  block.each([&](unsigned thread) {
    if (thread == 0) out.centroid_squares = shared.lanes[0];
  });
}

}  // namespace fl::cuda
