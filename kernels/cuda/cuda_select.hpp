// The k largest magnitudes (kernels/generic/select.hpp) on a device: the same cutoff, the same
// indices.
//
// Device memory of the current device, on `stream`, not waited for, no memory of its own: what is
// needed in between is the caller's, holds nothing before or after, and must not be used by two
// calls at a time. 0, or the first cudaError_t of a start (cuda_kernels.hpp). No overlaps; no
// alignment beyond the element's.
#pragma once

#include "kernels/generic/philox.hpp"
#include "kernels/generic/select.hpp"

#include <span>

struct CUstream_st;

namespace fl::cuda {

/// Numbers that find_largest needs in between.
inline constexpr std::size_t digit_counts = 1 << 11;

/// Writes the cutoff that selects k of the runs' values, which are at least as many and fewer than
/// 2^32. 1 <= k. Reads each run, which may be empty, three times.
[[nodiscard]] int find_largest(std::span<const std::span<const float>> runs, std::uint64_t k,
                               Cutoff* cutoff, std::uint32_t* counts, CUstream_st* stream);

inline constexpr std::size_t tile_elements = 4096;

[[nodiscard]] FL_HOST_DEVICE constexpr std::size_t tile_count(std::size_t n) {
  return (n + tile_elements - 1) / tile_elements;
}

/// Numbers that select_largest needs in between.
[[nodiscard]] constexpr std::size_t tile_sums(std::size_t n) { return 1 + tile_count(n); }

/// Writes the indices of the elements that `cutoff` selects, ascending, and how many they are;
/// `indices` has room for those. Takes the ties off the cutoff. n < 2^32. Reads x twice.
[[nodiscard]] int select_largest(const float* x, std::size_t n, Cutoff* cutoff,
                                 std::uint32_t* indices, std::uint32_t* selected,
                                 std::uint64_t* sums, CUstream_st* stream);

}  // namespace fl::cuda
