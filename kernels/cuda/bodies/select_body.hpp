// SPDX-License-Identifier: Apache-2.0
// The bodies of the kernels that select the largest magnitudes (cuda_select.hpp). Radix selection
// by histograms finds the cutoff (Alabi 2012, "Fast k-selection algorithms for graphics processing
// units"). Prefix sums then give each selected element its place (Blelloch 1990, "Prefix sums and
// their applications").
#pragma once

#include "kernels/cuda/bodies/block.hpp"
#include "kernels/cuda/cuda_select.hpp"
#include "kernels/generic/element_math.hpp"

namespace fl::cuda {

/// A magnitude's 31 bits are three digits, the highest first.
struct Digit {
  int shift;
  int bits;
};
inline constexpr int digit_count = 3;
FL_HOST_DEVICE constexpr Digit digit_at(int place) {
  return place == 0 ? Digit{20, 11} : place == 1 ? Digit{10, 10} : Digit{0, 10};
}

FL_DEVICE inline std::uint32_t magnitude_at(const float* x, std::size_t i) {
  return static_cast<std::uint32_t>(element::Scalar::bits(x[i])) & 0x7fffffff;
}

/// The start of find_largest(). Runs in one block.
template <class Block>
FL_DEVICE inline void begin_digits(const Block& block, std::uint64_t k, Cutoff* cutoff,
                                   std::uint32_t* counts) {
  block.each([&](unsigned thread) {
    if (thread == 0) *cutoff = {.magnitude = 0, .ties = k};
    for (unsigned c = thread; c < digit_counts; c += Block::threads) counts[c] = 0;
  });
}

/// Counts the values of a digit among the elements whose higher digits are those of the cutoff.
/// `shared` is shared memory for digit_counts numbers.
template <class Block>
FL_DEVICE inline void count_digit(const Block& block, const float* x, std::size_t n, Digit digit,
                                  const Cutoff* cutoff, std::uint32_t* counts,
                                  std::uint32_t* shared) {
  const int above = digit.shift + digit.bits;
  const std::uint32_t values = 1u << digit.bits;
  const std::uint32_t prefix = cutoff->magnitude;
  block.each([&](unsigned thread) {
    for (unsigned c = thread; c < values; c += Block::threads) shared[c] = 0;
  });
  block.each([&](unsigned thread) {
    for_each_index(block, thread, n, [&](std::size_t i) {
      const std::uint32_t magnitude = magnitude_at(x, i);
      if (magnitude >> above != prefix) return;
      Block::add(shared + (magnitude >> digit.shift & (values - 1)), 1);
    });
  });
  block.each([&](unsigned thread) {
    for (unsigned c = thread; c < values; c += Block::threads) {
      if (shared[c] > 0) Block::add(counts + c, shared[c]);
    }
  });
}

/// Appends the digit of the k-th largest element to the cutoff, and sets the counts to 0. Runs in
/// one block, whose number of threads is a power of two. `shared` is shared memory for one number a
/// thread.
template <class Block>
FL_DEVICE inline void narrow_digit(const Block& block, Digit digit, Cutoff* cutoff,
                                   std::uint32_t* counts, std::uint32_t* shared) {
  // Thread t sums the t-th highest part of the digit's values.
  const unsigned part = (1u << digit.bits) / Block::threads;
  block.each([&](unsigned thread) {
    const std::uint32_t* begin = counts + (Block::threads - 1 - thread) * part;
    shared[thread] = 0;
    for (unsigned c = 0; c < part; ++c) shared[thread] += begin[c];
  });
  block.each([&](unsigned thread) {
    if (thread != 0) return;
    std::uint64_t left = cutoff->ties;
    unsigned at = 0;
    for (; left > shared[at]; ++at) left -= shared[at];
    std::uint32_t value = (Block::threads - at) * part - 1;
    for (; left > counts[value]; --value) left -= counts[value];
    *cutoff = {.magnitude = cutoff->magnitude << digit.bits | value, .ties = left};
  });
  block.each([&](unsigned thread) {
    for (unsigned c = thread; c < digit_counts; c += Block::threads) counts[c] = 0;
  });
}

/// Two counts in one number: elements above the cutoff in the low half, ties in the high half.
using Marks = std::uint64_t;
inline constexpr Marks mark_above = 1;
inline constexpr Marks mark_tie = Marks{1} << 32;

FL_DEVICE inline Marks mark_of(std::uint32_t magnitude, std::uint32_t cutoff) {
  return magnitude > cutoff ? mark_above : magnitude == cutoff ? mark_tie : 0;
}

/// Prefix sums: each thread's value plus those of the threads before it (Hillis and Steele 1986).
/// `values` is shared memory for two numbers a thread; its first half has the values. Returns where
/// the sums are.
template <class Block>
FL_DEVICE inline const Marks* sums_through(const Block& block, Marks* values) {
  Marks* from = values;
  Marks* to = values + Block::threads;
  for (unsigned apart = 1; apart < Block::threads; apart *= 2) {
    block.each([&](unsigned thread) {
      to[thread] = from[thread] + (thread >= apart ? from[thread - apart] : 0);
    });
    Marks* const swapped = from;
    from = to;
    to = swapped;
  }
  return from;
}

/// A thread's share of a tile: the elements [begin, end).
struct Share {
  std::size_t begin;
  std::size_t end;
};

template <class Block>
FL_DEVICE inline Share share_of(unsigned thread, std::size_t tile, std::size_t n) {
  constexpr std::size_t size = tile_elements / Block::threads;
  const std::size_t begin = tile * tile_elements + thread * size;
  return {begin < n ? begin : n, begin + size < n ? begin + size : n};
}

FL_DEVICE inline Marks marks_of(const float* x, Share share, std::uint32_t cutoff) {
  Marks marks = 0;
  for (std::size_t i = share.begin; i < share.end; ++i) {
    marks += mark_of(magnitude_at(x, i), cutoff);
  }
  return marks;
}

/// Writes the marks of each tile to sums[1 + tile]. `shared` is as for sums_through().
template <class Block>
FL_DEVICE inline void count_tiles(const Block& block, const float* x, std::size_t n,
                                  const Cutoff* cutoff, Marks* sums, Marks* shared) {
  const std::size_t tiles = tile_count(n);
  for (std::size_t tile = block.index; tile < tiles; tile += block.blocks) {
    block.each([&](unsigned thread) {
      shared[thread] = marks_of(x, share_of<Block>(thread, tile, n), cutoff->magnitude);
    });
    const Marks* const through = sums_through(block, shared);
    block.each([&](unsigned thread) {
      if (thread == 0) sums[1 + tile] = through[Block::threads - 1];
    });
  }
}

/// sums[1 + tile] becomes the marks before the tile. sums[0] becomes the number of ties to select,
/// and the cutoff loses so many. `selected` becomes the number of selected elements. Runs in one
/// block.
template <class Block>
FL_DEVICE inline void add_tiles(const Block& block, std::size_t n, Cutoff* cutoff, Marks* sums,
                                std::uint32_t* selected, Marks* shared) {
  const std::size_t tiles = tile_count(n);
  const std::size_t part = (tiles + Block::threads - 1) / Block::threads;
  const auto for_each_tile = [&](unsigned thread, const auto& use) {
    for (std::size_t tile = thread * part; tile < (thread + 1) * part && tile < tiles; ++tile) {
      use(sums[1 + tile]);
    }
  };
  block.each([&](unsigned thread) {
    shared[thread] = 0;
    for_each_tile(thread, [&](Marks& marks) { shared[thread] += marks; });
  });
  const Marks* const through = sums_through(block, shared);
  block.each([&](unsigned thread) {
    Marks before = thread == 0 ? 0 : through[thread - 1];
    for_each_tile(thread, [&](Marks& marks) {
      const Marks here = marks;
      marks = before;
      before += here;
    });
    if (thread != 0) return;
    const Marks all = through[Block::threads - 1];
    const std::uint64_t ties = all >> 32 < cutoff->ties ? all >> 32 : cutoff->ties;
    sums[0] = ties;
    cutoff->ties -= ties;
    *selected = static_cast<std::uint32_t>(all) + static_cast<std::uint32_t>(ties);
  });
}

/// Writes the indices of the selected elements.
template <class Block>
FL_DEVICE inline void write_tiles(const Block& block, const float* x, std::size_t n,
                                  const Cutoff* cutoff, const Marks* sums, std::uint32_t* indices,
                                  Marks* shared) {
  const std::size_t tiles = tile_count(n);
  const std::uint64_t ties_taken = sums[0];
  for (std::size_t tile = block.index; tile < tiles; tile += block.blocks) {
    block.each([&](unsigned thread) {
      shared[thread] = marks_of(x, share_of<Block>(thread, tile, n), cutoff->magnitude);
    });
    const Marks* const through = sums_through(block, shared);
    block.each([&](unsigned thread) {
      const Share share = share_of<Block>(thread, tile, n);
      Marks before = sums[1 + tile] + (thread == 0 ? 0 : through[thread - 1]);
      for (std::size_t i = share.begin; i < share.end; ++i) {
        const Marks mark = mark_of(magnitude_at(x, i), cutoff->magnitude);
        const std::uint64_t ties = before >> 32;
        if (mark == mark_above || (mark == mark_tie && ties < ties_taken)) {
          const std::uint32_t above = static_cast<std::uint32_t>(before);
          indices[above + (ties < ties_taken ? ties : ties_taken)] = static_cast<std::uint32_t>(i);
        }
        before += mark;
      }
    });
  }
}

}  // namespace fl::cuda
