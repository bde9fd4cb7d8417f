// SPDX-License-Identifier: Apache-2.0
// Test values, and how tests launch the bodies of the CUDA kernels on a CPU.
#pragma once

#include "kernels/cuda/bodies/block.hpp"
#include "kernels/kernels.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <vector>

namespace fl::twins {

inline const Kernels& plain() { return *all_kernels().front(); }

inline constexpr std::size_t sizes[] = {1,  2,  3,  7,  8,   9,    15,   16,   17,
                                        31, 32, 33, 63, 255, 1023, 1024, 1025, 65537};

/// Normal values, and among them zeros of both signs, denormals and large values.
inline std::vector<float> values(std::size_t n, std::uint64_t seed) {
  std::vector<float> x(n);
  plain().gaussian(seed, 0, 0, x.data(), n);
  constexpr float odd[] = {0.0f, -0.0f, 1e-41f, -1e-41f, 1000.0f};
  for (std::size_t i = 0; i < n; i += 7) x[i] = odd[i / 7 % std::size(odd)];
  return x;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// Shared memory. A kernel may find anything in it, so it is filled with a pattern.
template <class T>
std::vector<T> shared_memory(std::size_t n) {
  std::vector<T> out(n);
  std::memset(static_cast<void*>(out.data()), 0xA5, n * sizeof(T));
  return out;
}

/// Runs body(block) for each block of a launch. Kernels must not depend on an order, so the last
/// block runs first, and the threads of every other block run backwards.
template <unsigned threads, class Body>
void launch(unsigned blocks, const Body& body) {
  for (unsigned index = blocks; index-- > 0;) {
    body(
        cuda::HostBlock<threads>{.index = index, .blocks = blocks, .is_backwards = index % 2 == 1});
  }
}

}  // namespace fl::twins
