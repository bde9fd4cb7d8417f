// SPDX-License-Identifier: Apache-2.0
// The bodies of the kernels that sum runs in the order of the rows (cuda_kernels.hpp): element i
// goes to lane i % 16, and the elements of a lane are added one after the other. So a block of
// threads has a run: all its threads load values and look at them, and 16 threads add.
#pragma once

#include "kernels/cuda/bodies/block.hpp"
#include "kernels/generic/element_math.hpp"

namespace fl::cuda {

inline constexpr std::size_t scan_tile = 4096;  // Values that are loaded at once.

/// The shared memory of sum_in_order() and its callers.
struct ScanMemory {
  float values[scan_tile];
  double lanes[element::scan_lanes];
  std::uint32_t largest;
  std::uint32_t first_bad;
};

/// Leaves the sum of value_of(x[i], i) over n values in shared.lanes[0]. Calls look(thread, begin,
/// count) for each tile; shared.values then has the tile's `count` values from x + begin on.
template <class Block, class Look, class ValueOf>
FL_DEVICE inline void sum_in_order(const Block& block, const float* x, std::size_t n,
                                   ScanMemory& shared, const Look& look, const ValueOf& value_of) {
  typename Block::template PerThread<double> lane;
  block.each([&](unsigned thread) { lane[thread] = 0; });
  for (std::size_t begin = 0; begin < n; begin += scan_tile) {
    const std::size_t count = n - begin < scan_tile ? n - begin : scan_tile;
    block.each([&](unsigned thread) {
      for (std::size_t i = thread; i < count; i += Block::threads) shared.values[i] = x[begin + i];
    });
    block.each([&](unsigned thread) {
      look(thread, begin, count);
      if (thread >= element::scan_lanes) return;
      for (std::size_t i = thread; i < count; i += element::scan_lanes) {
        lane[thread] += value_of(shared.values[i], begin + i);
      }
    });
  }
  block.each([&](unsigned thread) {
    if (thread < element::scan_lanes) shared.lanes[thread] = lane[thread];
  });
  block.each([&](unsigned thread) {
    if (thread == 0) element::add_lanes(shared.lanes);
  });
}

/// Two functions value_of() for sum_in_order().
struct SquareOf {
  FL_DEVICE double operator()(float value, std::size_t) const {
    return static_cast<double>(value) * value;
  }
};

struct MagnitudeOf {
  FL_DEVICE double operator()(float value, std::size_t) const {
    return static_cast<double>(value < 0 ? -value : value);
  }
};

/// Calls use(r, begin, count) for each run of this block of threads.
template <class Block, class Use>
FL_DEVICE inline void for_each_run(const Block& block, std::size_t n, std::size_t run,
                                   const Use& use) {
  for (std::size_t r = block.index; r * run < n; r += block.blocks) {
    const std::size_t begin = r * run;
    use(r, begin, n - begin < run ? n - begin : run);
  }
}

template <class Block>
FL_DEVICE inline void scan_runs(const Block& block, const float* x, std::size_t n, std::size_t run,
                                Scan* scans, ScanMemory& shared) {
  for_each_run(block, n, run, [&](std::size_t r, std::size_t run_begin, std::size_t run_count) {
    block.each([&](unsigned thread) {
      if (thread != 0) return;
      shared.largest = 0;
      shared.first_bad = static_cast<std::uint32_t>(run_count);
    });
    const auto look = [&](unsigned thread, std::size_t begin, std::size_t count) {
      std::uint32_t largest = 0;  // Bits order like magnitudes; NaN is the largest.
      for (std::size_t i = thread; i < count; i += Block::threads) {
        const auto bits = static_cast<std::uint32_t>(element::Scalar::bits(shared.values[i]));
        const std::uint32_t magnitude = bits & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
        if (magnitude < 0x7f800000) continue;
        Block::lower(&shared.first_bad, static_cast<std::uint32_t>(begin + i));
      }
      Block::raise(&shared.largest, largest);
    };
    sum_in_order(block, x + run_begin, run_count, shared, look, SquareOf{});
    block.each([&](unsigned thread) {
      if (thread != 0) return;
      const bool is_good = shared.first_bad == run_count;
      const auto bits = static_cast<std::int32_t>(shared.largest);
      scans[r].max_abs = is_good ? element::Scalar::from_bits(bits) : 0;
      scans[r].sum_squares = is_good ? shared.lanes[0] : 0;
      scans[r].first_bad = shared.first_bad;
    });
  });
}

template <class Block>
FL_DEVICE inline void pack_signs_of_runs(const Block& block, const float* x, std::size_t n,
                                         std::size_t run, std::uint8_t* out, double* sums,
                                         ScanMemory& shared) {
  for_each_run(block, n, run, [&](std::size_t r, std::size_t run_begin, std::size_t run_count) {
    const auto look = [&](unsigned thread, std::size_t begin, std::size_t count) {
      std::uint8_t* const bytes = out + (run_begin + begin) / 8;
      for (std::size_t byte = thread; byte * 8 < count; byte += Block::threads) {
        unsigned bits = 0;
        for (std::size_t i = byte * 8; i < count && i < byte * 8 + 8; ++i) {
          bits |= (shared.values[i] < 0 ? 1u : 0u) << i % 8;
        }
        bytes[byte] = static_cast<std::uint8_t>(bits);
      }
    };
    sum_in_order(block, x + run_begin, run_count, shared, look, MagnitudeOf{});
    block.each([&](unsigned thread) {
      if (thread == 0) sums[r] = shared.lanes[0];
    });
  });
}

}  // namespace fl::cuda
