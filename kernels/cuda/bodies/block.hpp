// SPDX-License-Identifier: Apache-2.0
// A block of threads that works in steps. each(f) calls f(thread) for every thread; the next step
// sees in all threads what this one wrote. The body of a CUDA kernel is a function template over
// such a block, and between the steps all threads must do the same. So tests can run the body of a
// kernel on a CPU.
//
// Tests use HostBlock. CUDA uses DeviceBlock, in launch/device_block.cuh, with the same members.
#pragma once

#include "kernels/generic/philox.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>

// For functions that only a kernel calls: device code for nvcc, plain functions elsewhere.
// FL_UNROLL asks nvcc to unroll the loop after it.
#ifdef __CUDACC__
#define FL_DEVICE __device__
#define FL_UNROLL _Pragma("unroll")
#else
#define FL_DEVICE
#define FL_UNROLL
#endif

namespace fl::cuda {

template <unsigned thread_count>
struct HostBlock {
  static constexpr unsigned threads = thread_count;
  unsigned index = 0;         // The number of this block,
  unsigned blocks = 1;        // and how many blocks were started.
  bool is_backwards = false;  // Runs the last thread first, to reveal dependence on the order.

  /// A value that each thread keeps from step to step. It is undefined until it is written.
  template <class T>
  struct PerThread {
    T value[threads];
    T& operator[](unsigned thread) { return value[thread]; }
  };

  template <class Use>
  void each(const Use& use) const {
    for (unsigned turn = 0; turn < threads; ++turn) use(is_backwards ? threads - 1 - turn : turn);
  }

  /// Bit t of the result is is_true(t). The block must have 32 threads. Like each(), it is a step.
  template <class IsTrue>
  std::uint32_t ballot(const IsTrue& is_true) const {
    static_assert(threads == 32);
    std::uint32_t votes = 0;
    each([&](unsigned thread) { votes |= (is_true(thread) ? 1u : 0u) << thread; });
    return votes;
  }

  /// These change memory that threads of all blocks may change at the same time. The order does not
  /// matter: values are integers, or doubles whose every sum is exact.
  static void add(std::uint32_t* to, std::uint32_t by) { *to += by; }
  static void add(double* to, double by) { *to += by; }
  static void raise(std::uint32_t* to, std::uint32_t least) { *to = *to < least ? least : *to; }
  static void lower(std::uint32_t* to, std::uint32_t most) { *to = *to > most ? most : *to; }

  static unsigned ones(std::uint32_t x) { return static_cast<unsigned>(std::popcount(x)); }
};

/// Calls use(i) for this thread's i of [0, n). Neighbouring threads have neighbouring i.
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
