// A block of threads that works in steps: each(f) calls f(thread) for every thread, and what one
// step wrote the next one sees in all threads. The body of a CUDA kernel is a function template
// over such a block, and the rest of it, between the steps, must be the same in all threads. So the
// lines that a GPU runs are also what a test runs on a CPU, which has no threads to disagree.
//
// HostBlock is the test's; DeviceBlock, in device_block.cuh, is CUDA's, with the same members.
#pragma once

#include "kernels/generic/philox.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>

// What only a kernel calls, where there are kernels.
#ifdef __CUDACC__
#define FL_DEVICE __device__
#else
#define FL_DEVICE
#endif

namespace fl::cuda {

template <unsigned thread_count>
struct HostBlock {
  static constexpr unsigned threads = thread_count;
  unsigned index = 0;  // Of this block, of the `blocks` that were started.
  unsigned blocks = 1;
  bool is_backwards = false;  // The last thread first: what depends on an order shows.

  /// What a thread keeps for itself from step to step; not defined before it is written.
  template <class T>
  struct PerThread {
    T value[threads];
    T& operator[](unsigned thread) { return value[thread]; }
  };

  template <class Use>
  void each(const Use& use) const {
    for (unsigned turn = 0; turn < threads; ++turn) use(is_backwards ? threads - 1 - turn : turn);
  }

  /// Bit t of the result: whether is_true(t). For 32 threads; memory as in each().
  template <class IsTrue>
  std::uint32_t ballot(const IsTrue& is_true) const {
    static_assert(threads == 32);
    std::uint32_t votes = 0;
    each([&](unsigned thread) { votes |= (is_true(thread) ? 1u : 0u) << thread; });
    return votes;
  }

  /// Of memory that threads of all blocks change at once: integers, so their order does not show.
  static void add(std::uint32_t* to, std::uint32_t by) { *to += by; }
  /// Where every sum is exact.
  static void add(double* to, double by) { *to += by; }
  static void raise(std::uint32_t* to, std::uint32_t least) { *to = *to < least ? least : *to; }
  static void lower(std::uint32_t* to, std::uint32_t most) { *to = *to > most ? most : *to; }

  static unsigned ones(std::uint32_t x) { return static_cast<unsigned>(std::popcount(x)); }
};

/// Calls use(i) for the i of [0, n) that are the thread's: neighbours have neighbours.
template <class Block, class Use>
FL_DEVICE inline void for_each_index(const Block& block, unsigned thread, std::size_t n,
                                     const Use& use) {
  const std::size_t stride = static_cast<std::size_t>(block.blocks) * Block::threads;
  for (std::size_t i = static_cast<std::size_t>(block.index) * Block::threads + thread; i < n;
       i += stride) {
    use(i);
  }
}

}  // namespace fl::cuda
