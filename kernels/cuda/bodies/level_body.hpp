// SPDX-License-Identifier: Apache-2.0
// The bodies of the kernels of a CodecDevice (kernels/codec_device.hpp). One group of threads
// (CUDA's block, bodies/block.hpp) rounds one block of the vector, and a warp codes its stream. In
// all functions `x` are the block's run.elements values, and shared.scales has a scale for each of
// its buckets. All threads of the group call a function together; when it returns, each sees what
// the others have written.
#pragma once

#include "kernels/codec_device.hpp"
#include "kernels/cuda/bodies/philox_halves.hpp"
#include "kernels/cuda/bodies/rans_body.hpp"
#include "kernels/cuda/bodies/rotated_body.hpp"
#include "kernels/generic/element_math.hpp"
#include "kernels/generic/nearest_scale.hpp"

#include <cmath>
#include <type_traits>

namespace fl::cuda {

/// Counts and sums over the levels of a block; see LevelTally.
struct TallyCounts {
  std::uint32_t counts[rans_classes_max * device_alphabet];
  double sums[summed_levels];
};

/// The search for a scale (nearest_scale.hpp).
struct ScaleSearch {
  nearest_scale::Tails tails;
  double left[nearest_scale::tried];
};

/// The shared memory of tally_levels().
struct TallyMemory {
  union {  // Used one after the other: values are measured before levels are counted.
    ScanMemory scan;
    ScaleSearch search;
    TallyCounts of_levels;
  };
  std::uint32_t scales[device_buckets_max];  // The bits of floats, which order like them.
  element::QuantizeFactors factors[device_buckets_max];
  RotatedMemory rotated;
  double magnitudes;
  std::uint32_t largest;
};

FL_DEVICE inline std::uint32_t magnitude_bits(float x) {
  return static_cast<std::uint32_t>(element::Scalar::bits(x)) & 0x7fffffff;
}

/// Lowers the scale of a block, which is one bucket, to at most run.clip root mean squares. It
/// computes them in double, as the host does.
template <class Block>
FL_DEVICE inline void clip_scale(const Block& block, const float* x, const LevelBlock& run,
                                 TallyMemory& shared) {
  sum_in_order(
      block, x, run.elements, shared.scan, [](unsigned, std::size_t, std::size_t) {}, SquareOf{});
  block.each([&](unsigned thread) {
    if (thread != 0) return;
    const double mean = shared.scan.lanes[0] / static_cast<double>(run.elements);
    const double most = static_cast<double>(run.clip) * std::sqrt(mean);
    const auto largest = static_cast<std::int32_t>(shared.scales[0]);
    if (!(most < static_cast<double>(element::Scalar::from_bits(largest)))) return;
    const std::int32_t bits = element::Scalar::bits(static_cast<float>(most));
    shared.scales[0] = static_cast<std::uint32_t>(bits);
  });
}

/// Fills shared.scales with the largest magnitude of each bucket.
template <class Block>
FL_DEVICE inline void find_largest_of_buckets(const Block& block, const float* x,
                                              const LevelBlock& run, TallyMemory& shared) {
  const std::size_t buckets = bucket_count(run);
  block.each([&](unsigned thread) {
    for (std::size_t b = thread; b < buckets; b += Block::threads) shared.scales[b] = 0;
  });
  block.each([&](unsigned thread) {
    std::size_t bucket = 0;
    std::uint32_t largest = 0;  // The largest of this thread's values in the bucket.
    for (std::size_t i = thread; i < run.elements; i += Block::threads) {
      if (i / run.bucket != bucket) {
        Block::raise(shared.scales + bucket, largest);
        bucket = i / run.bucket;
        largest = 0;
      }
      const std::uint32_t bits = magnitude_bits(x[i]);
      largest = bits > largest ? bits : largest;
    }
    Block::raise(shared.scales + bucket, largest);
  });
}

/// Fills shared.scales and shared.factors for stochastic rounding.
template <class Block>
FL_DEVICE inline void find_scales(const Block& block, const float* x, const LevelBlock& run,
                                  TallyMemory& shared) {
  find_largest_of_buckets(block, x, run, shared);
  if (run.clip > 0) clip_scale(block, x, run, shared);
  block.each([&](unsigned thread) {
    for (std::size_t b = thread; b < bucket_count(run); b += Block::threads) {
      if (shared.scales[b] == 0) continue;
      const float scale = element::Scalar::from_bits(static_cast<std::int32_t>(shared.scales[b]));
      shared.factors[b] = element::quantize_factors(scale, run.levels);
    }
  });
}

/// Writes the best scale of a bucket, whose largest |x| is `most`, to `scale_bits`.
template <class Block>
FL_DEVICE inline void fit_scale(const Block& block, const float* x, std::size_t n, float most,
                                const LevelBlock& run, ScaleSearch& search,
                                std::uint32_t* scale_bits) {
  constexpr auto last = static_cast<std::int32_t>(nearest_scale::bins - 1);
  const float per_bin = 1.0f / (most / static_cast<float>(last));
  block.each([&](unsigned thread) {
    for (std::size_t b = thread; b <= nearest_scale::bins; b += Block::threads)
      search.tails.count[b] = 0;
  });
  block.each([&](unsigned thread) {
    for (std::size_t i = thread; i < n; i += Block::threads) {
      const std::int32_t place = element::round_level<element::Scalar>(x[i] * per_bin);
      const std::int32_t bin = place < 0 ? -place : place;
      Block::add(search.tails.count + (bin < last ? bin : last), 1);
    }
  });
  block.each([&](unsigned thread) {
    if (thread == 0) nearest_scale::add_tails(search.tails);
  });
  block.each([&](unsigned thread) {
    for (unsigned number = thread; number < nearest_scale::tried; number += Block::threads) {
      const double share = nearest_scale::share_of(static_cast<int>(number));
      search.left[number] = nearest_scale::squares_left(search.tails, share, run.levels);
    }
  });
  block.each([&](unsigned thread) {
    if (thread != 0) return;
    const double scale = static_cast<double>(most) * nearest_scale::best_share(search.left);
    const std::int32_t bits = element::Scalar::bits(static_cast<float>(scale));
    *scale_bits = static_cast<std::uint32_t>(bits);
  });
}

/// Fills shared.scales for fitted rounding; the scale of a bucket with too small values is 0. Also
/// sets the `places` of shared.factors: here value * places is the level before rounding.
template <class Block>
FL_DEVICE inline void fit_scales(const Block& block, const float* x, const LevelBlock& run,
                                 TallyMemory& shared) {
  find_largest_of_buckets(block, x, run, shared);
  const auto least = static_cast<std::uint32_t>(element::Scalar::bits(nearest_scale::least_scale));
  block.each([&](unsigned thread) {
    for (std::size_t b = thread; b < bucket_count(run); b += Block::threads) {
      if (shared.scales[b] < least) shared.scales[b] = 0;
    }
  });
  for (std::size_t b = 0; b < bucket_count(run); ++b) {
    const std::uint32_t largest = shared.scales[b];
    if (largest == 0 || run.levels > nearest_scale::levels_max) continue;
    const std::size_t begin = b * run.bucket;
    const std::size_t left = run.elements - begin;
    fit_scale(block, x + begin, left < run.bucket ? left : run.bucket,
              element::Scalar::from_bits(static_cast<std::int32_t>(largest)), run, shared.search,
              shared.scales + b);
  }
  block.each([&](unsigned thread) {
    for (std::size_t b = thread; b < bucket_count(run); b += Block::threads) {
      const float scale = element::Scalar::from_bits(static_cast<std::int32_t>(shared.scales[b]));
      shared.factors[b].places = 1.0f / (scale / static_cast<float>(run.levels));
    }
  });
}

template <class Block>
FL_DEVICE inline void sum_magnitudes(const Block& block, const float* x, const LevelBlock& run,
                                     TallyMemory& shared) {
  sum_in_order(
      block, x, run.elements, shared.scan, [](unsigned, std::size_t, std::size_t) {},
      MagnitudeOf{});
  block.each([&](unsigned thread) {
    if (thread == 0) shared.magnitudes = shared.scan.lanes[0];
  });
}

/// Calls use(i, half) for this thread's values and their random halves.
template <class Block, class Use>
FL_DEVICE inline void for_each_half_of(unsigned thread, const LevelBlock& run, std::uint64_t stream,
                                       std::uint64_t first, const Use& use) {
  constexpr std::uint64_t line = philox::half_line_elements;
  const std::uint64_t begin = first / line * 8;
  const std::uint64_t end = ((first + run.elements - 1) / line + 1) * 8;
  for (std::uint64_t group = begin + thread; group < end; group += Block::threads) {
    for_each_of_group(run.seed, stream, group, first, run.elements, use);
  }
}

/// Calls use(i, level, class) for this thread's values. x is the block, rotated if `rounding` says
/// so.
template <LevelRounding rounding, class Block, class Use>
FL_DEVICE inline void for_each_level(unsigned thread, const float* x, const LevelBlock& run,
                                     const TallyMemory& shared, const Use& use) {
  const auto for_each = [&](const auto& use_index) {
    for (std::size_t i = thread; i < run.elements; i += Block::threads) use_index(i);
  };
  const float per_step = 1.0f / run.step;
  if constexpr (rounding == LevelRounding::rotated) {
    for_each([&](std::size_t i) {
      const int of = run.class_bits == 0 || i < run.split ? 0 : 1;
      use(i, centroid_of(x[i], i, run, shared.rotated).level, of);
    });
  } else if constexpr (rounding == LevelRounding::sign) {
    for_each([&](std::size_t i) { use(i, x[i] < 0 ? 0 : x[i] > 0 ? -1 : 1, 0); });
  } else if constexpr (rounding == LevelRounding::fitted) {
    for_each([&](std::size_t i) {
      const std::size_t bucket = i / run.bucket;
      const float place = x[i] * shared.factors[bucket].places;
      const std::int32_t nearest =
          shared.scales[bucket] == 0 ? 0 : element::round_level<element::Scalar>(place);
      use(i, nearest > run.levels ? run.levels : (nearest < -run.levels ? -run.levels : nearest),
          0);
    });
  } else if constexpr (rounding == LevelRounding::nearest) {
    for_each(
        [&](std::size_t i) { use(i, element::round_level<element::Scalar>(x[i] * per_step), 0); });
  } else if constexpr (rounding == LevelRounding::dither) {
    for_each_half_of<Block>(thread, run, 0, 0, [&](std::size_t i, std::uint32_t half) {
      const auto word = static_cast<std::int32_t>(half << 16);
      use(i, element::dither<element::Scalar>(x[i], word, per_step),
          run.class_bits == 0 ? 0 : element::dither_class<element::Scalar>(word, run.class_bits));
    });
  } else {
    static_assert(rounding == LevelRounding::stochastic);
    for_each_half_of<Block>(
        thread, run, run.stream, run.first, [&](std::size_t i, std::uint32_t half) {
          const std::size_t bucket = i / run.bucket;
          const auto noise = static_cast<std::int32_t>(half);
          use(i,
              shared.scales[bucket] == 0
                  ? 0
                  : element::quantize<element::Scalar>(x[i], noise, shared.factors[bucket]),
              0);
        });
  }
}

/// Counts a thread's levels. Most values of a narrow code are -1, 0 or 1, so these are counted in
/// registers: the threads of a group would wait for each other to count them in shared memory.
template <class Block>
struct LevelCounter {
  static constexpr std::int32_t near = 1;
  std::uint32_t* counts;
  std::uint32_t of_near[2 * near + 1] = {};  // How often each of these occurs in class 0.

  FL_DEVICE void count(std::int32_t level, int of) {
    if (of == 0 && level >= -near && level <= near) {
      for (std::int32_t l = -near; l <= near; ++l) of_near[l + near] += level == l ? 1 : 0;
    } else {
      add(level, of, 1);
    }
  }
  FL_DEVICE void finish() {
    for (std::int32_t l = -near; l <= near; ++l) {
      if (of_near[l + near] > 0) add(l, 0, of_near[l + near]);
    }
  }
  FL_DEVICE void add(std::int32_t level, int of, std::uint32_t by) {
    const std::int32_t place = of * static_cast<std::int32_t>(device_alphabet) + level;
    Block::add(counts + place + device_levels_max, by);
  }
};

template <LevelRounding rounding>
using RoundingConstant = std::integral_constant<LevelRounding, rounding>;

/// Returns use(constant), with the rounding as a constant. Host code only.
template <class Use>
decltype(auto) with_rounding(LevelRounding rounding, const Use& use) {
  switch (rounding) {
    case LevelRounding::nearest: return use(RoundingConstant<LevelRounding::nearest>());
    case LevelRounding::dither: return use(RoundingConstant<LevelRounding::dither>());
    case LevelRounding::stochastic: return use(RoundingConstant<LevelRounding::stochastic>());
    case LevelRounding::fitted: return use(RoundingConstant<LevelRounding::fitted>());
    case LevelRounding::sign: return use(RoundingConstant<LevelRounding::sign>());
    case LevelRounding::rotated: break;
  }
  return use(RoundingConstant<LevelRounding::rotated>());
}

/// Rounds one block, which has this rounding, and writes its tally. A block with
/// LevelRounding::rotated must be rotated already. Writes each value's level + 127 to `levels` and,
/// if there is more than one class, its class to `classes`.
template <LevelRounding rounding, class Block>
FL_DEVICE inline void tally_levels(const Block& block, const float* vector, const LevelBlock& run,
                                   const Rotation& rotation, std::uint8_t* levels,
                                   std::uint8_t* classes, LevelTally* tally, TallyMemory& shared) {
  constexpr std::size_t counters = rans_classes_max * device_alphabet;
  const float* const x = vector + run.begin;
  block.each([&](unsigned thread) {
    if (thread == 0) shared.largest = 0;
  });
  block.each([&](unsigned thread) {
    std::uint32_t largest = 0;  // Bits order like magnitudes; NaN is the largest.
    for (std::size_t i = thread; i < run.elements; i += Block::threads) {
      const std::uint32_t bits = magnitude_bits(x[i]);
      largest = bits > largest ? bits : largest;
    }
    Block::raise(&shared.largest, largest);
  });
  const auto most = static_cast<std::uint32_t>(element::Scalar::bits(run.most));
  const auto least = static_cast<std::uint32_t>(element::Scalar::bits(run.least));
  const bool is_levelled = shared.largest > 0 && shared.largest >= least && shared.largest <= most;
  constexpr bool is_fitted = rounding == LevelRounding::fitted;
  constexpr bool has_scales = rounding == LevelRounding::stochastic || is_fitted;
  constexpr bool is_sign = rounding == LevelRounding::sign;
  constexpr bool is_rotated = rounding == LevelRounding::rotated;
  if (is_levelled) {
    if constexpr (is_fitted) fit_scales(block, x, run, shared);
    if constexpr (has_scales && !is_fitted) find_scales(block, x, run, shared);
    if constexpr (is_sign) sum_magnitudes(block, x, run, shared);
    if constexpr (is_rotated) sum_rotated(block, rotation.values, run, shared.rotated, shared.scan);
  }
  TallyCounts& found = shared.of_levels;
  block.each([&](unsigned thread) {
    for (std::size_t c = thread; c < counters; c += Block::threads) found.counts[c] = 0;
    if (thread < summed_levels) found.sums[thread] = 0;
  });
  if (is_levelled) {
    block.each([&](unsigned thread) {
      double sums[summed_levels] = {};
      LevelCounter<Block> counter{.counts = found.counts};
      const float* const rounded = is_rotated ? rotation.values : x;
      for_each_level<rounding, Block>(
          thread, rounded, run, shared, [&](std::size_t i, std::int32_t level, int of) {
            levels[i] = static_cast<std::uint8_t>(level + device_levels_max);
            if (run.class_bits > 0) classes[i] = static_cast<std::uint8_t>(of);
            counter.count(level, of);
            if constexpr (rounding != LevelRounding::nearest) return;
            const std::int32_t size = level < 0 ? -level : level;
            const float magnitude = x[i] < 0 ? -x[i] : x[i];
            for (std::int32_t s = 0; s < static_cast<std::int32_t>(summed_levels); ++s) {
              if (size == s + 1) sums[s] += static_cast<double>(magnitude);
            }
          });
      counter.finish();
      for (std::size_t s = 0; s < summed_levels; ++s) {
        if (sums[s] > 0) Block::add(found.sums + s, sums[s]);
      }
    });
  }
  block.each([&](unsigned thread) {
    for (std::size_t c = thread; c < counters; c += Block::threads) {
      tally->counts[c] = found.counts[c];
    }
    if (thread < summed_levels) tally->sums[thread] = found.sums[thread];
    const std::size_t buckets = is_levelled && has_scales ? bucket_count(run) : 0;
    for (std::size_t b = thread; b < buckets; b += Block::threads) {
      tally->scales[b] = element::Scalar::from_bits(static_cast<std::int32_t>(shared.scales[b]));
    }
    if (thread == 0) {
      tally->is_levelled = is_levelled ? 1 : 0;
      if (is_levelled && is_sign) tally->magnitudes = shared.magnitudes;
      if (is_levelled && is_rotated) {
        tally->sum_squares = *rotation.sum_squares;
        tally->product = shared.rotated.product;
        tally->centroid_squares = shared.rotated.centroid_squares;
      }
    }
  });
}

/// The symbols of a block's levels (LevelCode), for encode_stream().
struct LevelSymbols {
  const std::uint8_t* levels;   // Multiples of 16, both.
  const std::uint8_t* classes;  // Or null: there is one class.
  int class_drop;
  std::uint32_t alphabet;
  std::uint32_t less;  // A level's symbol in its class is less by this than what is in `levels`.

  FL_DEVICE std::uint32_t at(std::size_t i) const {
    const std::uint32_t of = classes == nullptr ? 0 : classes[i] >> class_drop;
    return of * alphabet + levels[i] - less;
  }
  /// As PlainSymbols::group(). Symbols are below 256, so bytes carry nothing to their neighbours.
  FL_DEVICE SymbolGroup group(std::size_t i) const {
    constexpr std::uint32_t each = 0x01010101;
    SymbolGroup out = load_group(levels + i);
    for (std::uint32_t& word : out.words) word -= less * each;
    if (classes == nullptr) return out;
    const SymbolGroup of = load_group(classes + i);
    const std::uint32_t mask = (0xffu >> class_drop) * each;
    for (int w = 0; w < 4; ++w) out.words[w] += (of.words[w] >> class_drop & mask) * alphabet;
    return out;
  }
};

/// Codes the stream of one block from what tally_levels() has written. The stream ends at
/// `out_end`. `levels` and `classes` are multiples of 16.
template <class Block>
FL_DEVICE inline void code_levels(const Block& warp, const LevelBlock& run, const LevelCode& code,
                                  const std::uint8_t* levels, const std::uint8_t* classes,
                                  std::uint16_t* out_end, std::uint32_t* bytes,
                                  EncodeMemory& shared) {
  if (code.top == 0) {
    warp.each([&](unsigned lane) {
      if (lane == 0) *bytes = 0;
    });
    return;
  }
  const auto less = static_cast<std::uint32_t>(device_levels_max - code.top);
  if (code.packed > 0) {
    const std::uint32_t size = (code.packed + 7) / 8;
    std::uint8_t* const out = reinterpret_cast<std::uint8_t*>(out_end) - size;
    warp.each([&](unsigned lane) {
      for (std::uint32_t byte = lane; byte < size; byte += Block::threads) {
        unsigned bits = 0;
        for (std::uint32_t i = byte * 8; i < code.packed && i < byte * 8 + 8; ++i)
          bits |= (levels[i] - less) << i % 8;
        out[byte] = static_cast<std::uint8_t>(bits);
      }
      if (lane == 0) *bytes = size;
    });
    return;
  }
  const bool has_classes = run.class_bits > code.class_drop;
  encode_stream(
      warp,
      EncodeRun{
          .frequencies = code.frequencies, .n = run.elements, .out_end = out_end, .bytes = bytes},
      shared,
      LevelSymbols{.levels = levels,
                   .classes = has_classes ? classes : nullptr,
                   .class_drop = code.class_drop,
                   .alphabet = 2 * static_cast<std::uint32_t>(code.top) + 1,
                   .less = less});
}

}  // namespace fl::cuda
