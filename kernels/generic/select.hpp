// SPDX-License-Identifier: Apache-2.0
// Selects the k largest magnitudes of a long vector without sorting it. It uses radix selection on
// the bit patterns, which order like the magnitudes (Knuth, "The Art of Computer Programming",
// volume 3, section 5.2.5; histograms on GPUs: Alabi 2012, "Fast k-selection algorithms for
// graphics processing units"). It uses integers only, so every machine selects the same. Pure; any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fl {

/// Says which elements are selected: those with a larger magnitude (a value's bits without the
/// sign), and the first `ties` of those with an equal one.
struct Cutoff {
  std::uint32_t magnitude;
  std::uint64_t ties;
  bool operator==(const Cutoff&) const = default;
};

/// The cutoff that selects k elements of all runs, taken as one vector. Requires: 1 <= k <= their
/// elements. Reads each run three times. If the vector is long and k much smaller, it mostly reads
/// once and copies the magnitudes above a guess.
[[nodiscard]] Cutoff find_largest(std::span<const std::span<const float>> runs, std::uint64_t k);
/// Finds the cutoff of words, which order by their lowest 31 bits.
[[nodiscard]] Cutoff find_largest(std::span<const std::uint32_t> words, std::uint64_t k);
/// Whether find_largest() of the runs would return this cutoff. Reads each run once.
[[nodiscard]] bool is_cutoff_of(std::span<const std::span<const float>> runs, std::uint64_t k,
                                const Cutoff& cutoff);

/// Writes the indices of the elements that `cutoff` selects, ascending, and returns how many. It
/// subtracts the ties that it used from the cutoff, so that the next call can continue with the
/// next part of the vector. Requires: `indices` has room for x.size(); x.size() <= 2^32.
[[nodiscard]] std::size_t select_largest(std::span<const float> x, Cutoff& cutoff,
                                         std::uint32_t* indices);
[[nodiscard]] std::size_t select_largest(std::span<const std::uint32_t> words, Cutoff& cutoff,
                                         std::uint32_t* indices);

}  // namespace fl
