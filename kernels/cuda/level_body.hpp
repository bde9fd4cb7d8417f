// The bodies of the kernels of a LevelDevice (kernels/level_device.hpp): a block of threads has a
// block of the vector, and a warp its stream.
#pragma once

#include "kernels/cuda/halves.hpp"
#include "kernels/cuda/rans_body.hpp"
#include "kernels/element.hpp"
#include "kernels/level_device.hpp"

namespace fl::cuda {

/// Shared memory.
struct TallyMemory {
  std::uint32_t counts[rans_classes_max * device_alphabet];
  double sums[summed_levels];
  std::uint32_t largest;
};

/// Calls use(i, level, class) for the values that are the thread's.
template <class Block, class Use>
FL_DEVICE inline void for_each_level(unsigned thread, const float* x, const LevelBlock& run,
                                     const Use& use) {
  const float per_step = 1.0f / run.step;
  if (!run.is_dithered) {
    for (std::size_t i = thread; i < run.elements; i += Block::threads) {
      use(i, element::round_level<element::Scalar>(x[i] * per_step), 0);
    }
    return;
  }
  constexpr std::size_t line = philox::half_line_elements;
  const std::size_t groups = (run.elements + line - 1) / line * 8;
  for (std::size_t group = thread; group < groups; group += Block::threads) {
    for_each_of_group(run.key, 0, group, 0, run.elements, [&](std::size_t i, std::uint32_t half) {
      const auto word = static_cast<std::int32_t>(half << 16);
      use(i, element::dither<element::Scalar>(x[i], word, per_step),
          run.class_bits == 0 ? 0 : element::dither_class<element::Scalar>(word, run.class_bits));
    });
  }
}

/// The tally of one block. Writes each value's level + 127 to `levels`, and its class to `classes`,
/// where there are several.
template <class Block>
FL_DEVICE inline void tally_levels(const Block& block, const float* vector, const LevelBlock& run,
                                   std::uint8_t* levels, std::uint8_t* classes, LevelTally* tally,
                                   TallyMemory& shared) {
  constexpr std::size_t counters = rans_classes_max * device_alphabet;
  const float* const x = vector + run.begin;
  block.each([&](unsigned thread) {
    for (std::size_t c = thread; c < counters; c += Block::threads) shared.counts[c] = 0;
    if (thread < summed_levels) shared.sums[thread] = 0;
    if (thread == 0) shared.largest = 0;
  });
  block.each([&](unsigned thread) {
    std::uint32_t largest = 0;  // Magnitudes order like their bits, NaN on top.
    for (std::size_t i = thread; i < run.elements; i += Block::threads) {
      const auto bits = static_cast<std::uint32_t>(element::Scalar::bits(x[i])) & 0x7fffffff;
      largest = bits > largest ? bits : largest;
    }
    Block::raise(&shared.largest, largest);
  });
  const auto most = static_cast<std::uint32_t>(element::Scalar::bits(run.most));
  const bool is_levelled = shared.largest > 0 && shared.largest <= most;
  if (is_levelled) {
    block.each([&](unsigned thread) {
      double sums[summed_levels] = {};
      for_each_level<Block>(thread, x, run, [&](std::size_t i, std::int32_t level, int of) {
        const std::int32_t place = level + device_levels_max;
        levels[i] = static_cast<std::uint8_t>(place);
        if (run.class_bits > 0) classes[i] = static_cast<std::uint8_t>(of);
        Block::add(shared.counts + of * static_cast<std::int32_t>(device_alphabet) + place, 1);
        if (run.is_dithered) return;
        const std::int32_t size = level < 0 ? -level : level;
        const float magnitude = x[i] < 0 ? -x[i] : x[i];
        for (std::int32_t s = 0; s < static_cast<std::int32_t>(summed_levels); ++s) {
          if (size == s + 1) sums[s] += static_cast<double>(magnitude);
        }
      });
      for (std::size_t s = 0; s < summed_levels; ++s) {
        if (sums[s] > 0) Block::add(shared.sums + s, sums[s]);
      }
    });
  }
  block.each([&](unsigned thread) {
    for (std::size_t c = thread; c < counters; c += Block::threads) {
      tally->counts[c] = shared.counts[c];
    }
    if (thread < summed_levels) tally->sums[thread] = shared.sums[thread];
    if (thread == 0) tally->is_levelled = is_levelled ? 1 : 0;
  });
}

/// The stream of one block, from what tally_levels() has written; it ends at `out_end`.
template <class Block>
FL_DEVICE inline void code_levels(const Block& warp, const LevelBlock& run, const LevelCode& code,
                                  const std::uint8_t* levels, const std::uint8_t* classes,
                                  std::uint16_t* out_end, std::uint32_t* bytes, rans::Code* codes) {
  if (code.top == 0) {
    warp.each([&](unsigned lane) {
      if (lane == 0) *bytes = 0;
    });
    return;
  }
  const std::int32_t to_symbol = code.top - device_levels_max;
  const std::int32_t alphabet = 2 * code.top + 1;
  const bool has_classes = run.class_bits > code.class_drop;
  encode_stream(
      warp,
      EncodeRun{
          .frequencies = code.frequencies, .n = run.elements, .out_end = out_end, .bytes = bytes},
      codes, [&](std::size_t i) {
        const std::int32_t of = has_classes ? classes[i] >> code.class_drop : 0;
        return static_cast<std::uint32_t>(of * alphabet + levels[i] + to_symbol);
      });
}

}  // namespace fl::cuda
