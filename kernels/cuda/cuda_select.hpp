// SPDX-License-Identifier: Apache-2.0
// Selects the k largest magnitudes (kernels/generic/select.hpp) on a device, with the same cutoff
// and the same indices.
//
// Calls are as in cuda_kernels.hpp: memory of the current device, on `stream`, without waiting, and
// the result is 0 or the first cudaError_t of a start. They allocate nothing: the caller passes
// scratch memory, whose contents do not matter before and after, and which two calls must not use
// at the same time. Pointers must not overlap, and need no more alignment than the element's type.
#pragma once

#include "kernels/generic/philox.hpp"
#include "kernels/generic/select.hpp"

#include <span>

struct CUstream_st;

namespace fl::cuda {

/// The size of the scratch memory `counts` of find_largest().
inline constexpr std::size_t digit_counts = 1 << 11;

/// Writes the cutoff that selects k of the runs' values. Requires: 1 <= k <= the number of values
/// < 2^32. A run may be empty. Reads each run three times.
[[nodiscard]] int find_largest(std::span<const std::span<const float>> runs, std::uint64_t k,
                               Cutoff* cutoff, std::uint32_t* counts, CUstream_st* stream);

/// The number of elements of a tile of select_largest().
inline constexpr std::size_t tile_elements = 4096;

[[nodiscard]] FL_HOST_DEVICE constexpr std::size_t tile_count(std::size_t n) {
  return (n + tile_elements - 1) / tile_elements;
}

/// The size of the scratch memory `sums` of select_largest().
[[nodiscard]] constexpr std::size_t tile_sums(std::size_t n) { return 1 + tile_count(n); }

/// Writes the indices of the elements that `cutoff` selects, ascending, and their number to
/// `selected`. Subtracts the ties that it used from the cutoff. Requires: `indices` has room for
/// the selected; n < 2^32. Reads x twice.
[[nodiscard]] int select_largest(const float* x, std::size_t n, Cutoff* cutoff,
                                 std::uint32_t* indices, std::uint32_t* selected,
                                 std::uint64_t* sums, CUstream_st* stream);

}  // namespace fl::cuda
