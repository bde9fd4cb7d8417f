// SPDX-License-Identifier: Apache-2.0
// Runs the bodies of CUDA kernels on a CPU, with the launches of their .cu files.
#pragma once

#include "kernels/cuda/bodies/matrix_body.hpp"
#include "kernels/cuda/bodies/rotate_body.hpp"
#include "kernels/cuda/bodies/select_body.hpp"
#include "tests/kernels/cuda_twins.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace fl::twins {

template <unsigned threads, class Body>
void launch_one(bool is_backwards, const Body& body) {
  body(cuda::HostBlock<threads>{.index = 0, .blocks = 1, .is_backwards = is_backwards});
}

/// find_largest() of cuda_select.cu, with `blocks` blocks for each run.
template <unsigned threads>
Cutoff find_largest_by_blocks(std::span<const std::span<const float>> runs, std::uint64_t k,
                              unsigned blocks) {
  const bool is_backwards = blocks > 1;
  Cutoff cutoff{};
  auto counts = shared_memory<std::uint32_t>(cuda::digit_counts);
  launch_one<threads>(is_backwards, [&](const auto& block) {
    cuda::begin_digits(block, k, &cutoff, counts.data());
  });
  for (int place = 0; place < cuda::digit_count; ++place) {
    for (const auto& run : runs) {
      launch<threads>(blocks, [&](const auto& block) {
        auto shared = shared_memory<std::uint32_t>(cuda::digit_counts);
        cuda::count_digit(block, run.data(), run.size(), cuda::digit_at(place), &cutoff,
                          counts.data(), shared.data());
      });
    }
    launch_one<threads>(is_backwards, [&](const auto& block) {
      auto shared = shared_memory<std::uint32_t>(threads);
      cuda::narrow_digit(block, cuda::digit_at(place), &cutoff, counts.data(), shared.data());
    });
  }
  return cutoff;
}

/// select_largest() of cuda_select.cu. Subtracts the ties that it used from the cutoff.
template <unsigned threads>
std::vector<std::uint32_t> select_by_blocks(std::span<const float> x, Cutoff& cutoff,
                                            unsigned blocks) {
  const std::size_t n = x.size();
  auto sums = shared_memory<std::uint64_t>(cuda::tile_sums(n));
  std::uint32_t selected = 77;
  launch<threads>(blocks, [&](const auto& block) {
    auto shared = shared_memory<cuda::Marks>(2 * threads);
    cuda::count_tiles(block, x.data(), n, &cutoff, sums.data(), shared.data());
  });
  launch_one<threads>(blocks > 1, [&](const auto& block) {
    auto shared = shared_memory<cuda::Marks>(2 * threads);
    cuda::add_tiles(block, n, &cutoff, sums.data(), &selected, shared.data());
  });
  std::vector<std::uint32_t> indices(selected);  // Exact size, for ASan.
  launch<threads>(blocks, [&](const auto& block) {
    auto shared = shared_memory<cuda::Marks>(2 * threads);
    cuda::write_tiles(block, x.data(), n, &cutoff, sums.data(), indices.data(), shared.data());
  });
  return indices;
}

/// hadamard() of cuda_rotate.cu.
inline void hadamard_by_blocks(float* x, int log2_n, std::size_t runs, const cuda::SignFlip* flips,
                               unsigned blocks) {
  launch<64>(blocks, [&](const auto& block) {
    auto values_shared = shared_memory<float>(cuda::tile_values);
    auto words = shared_memory<std::uint32_t>(cuda::tile_words);
    cuda::transform_tiles(block, x, log2_n, runs, flips, values_shared.data(), words.data());
  });
  const std::size_t n = runs << log2_n;
  for (int s = cuda::tile_log2; s < log2_n;) {
    const int count = std::min(3, log2_n - s);
    launch<64>(blocks, [&](const auto& block) {
      if (count == 1) cuda::transform_far<1>(block, x, n, s);
      if (count == 2) cuda::transform_far<2>(block, x, n, s);
      if (count == 3) cuda::transform_far<3>(block, x, n, s);
    });
    s += count;
  }
}

/// The products of cuda_matrix.cu.
inline void multiply_by_blocks(const float* matrix, const MatrixSizes& of, const float* right,
                               float* left, unsigned blocks) {
  launch<32>(blocks, [&](const auto& warp) {
    auto shared = shared_memory<cuda::DotMemory>(1);
    cuda::multiply_rows(warp, matrix, of, right, left, shared.front());
  });
}
inline void multiply_transposed_by_blocks(const float* matrix, const MatrixSizes& of,
                                          const float* left, float* right, unsigned blocks) {
  launch<256>(blocks,
              [&](const auto& block) { cuda::multiply_columns(block, matrix, of, left, right); });
}

}  // namespace fl::twins
