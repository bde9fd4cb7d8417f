// The k largest magnitudes of a long vector, without sorting it: radix selection on the
// bit patterns, whose order is that of the magnitudes (Knuth, "The Art of Computer Programming",
// volume 3, section 5.2.5; as histograms on GPUs: Alabi 2012, "Fast k-selection algorithms for
// graphics processing units"). Integers only, so every machine selects the same. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fl {

/// Tells selected elements from the rest: those whose magnitude (the bits of a value but the sign)
/// is larger, and of the equal ones the first `ties` in order.
struct Cutoff {
  std::uint32_t magnitude;
  std::uint64_t ties;
  bool operator==(const Cutoff&) const = default;
};

/// The cutoff that selects k elements of all runs together, taken as one vector. 1 <= k <= all
/// their elements. Each run is read three times; of a long vector, if k is small against it, mostly
/// once: then what is larger than a guess is copied.
[[nodiscard]] Cutoff find_largest(std::span<const std::span<const float>> runs, std::uint64_t k);
/// The same for words, by their lowest 31 bits.
[[nodiscard]] Cutoff find_largest(std::span<const std::uint32_t> words, std::uint64_t k);
/// Whether find_largest() of the runs returns this. Reads each once.
[[nodiscard]] bool is_cutoff_of(std::span<const std::span<const float>> runs, std::uint64_t k,
                                const Cutoff& cutoff);

/// Writes the indices of the elements that `cutoff` selects, ascending, and returns how many.
/// `indices` has room for x.size(). Takes the ties that it used off the cutoff, so that the next
/// part of the same vector goes on from there. x.size() <= 2^32.
[[nodiscard]] std::size_t select_largest(std::span<const float> x, Cutoff& cutoff,
                                         std::uint32_t* indices);
[[nodiscard]] std::size_t select_largest(std::span<const std::uint32_t> words, Cutoff& cutoff,
                                         std::uint32_t* indices);

}  // namespace fl
