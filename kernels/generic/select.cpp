// SPDX-License-Identifier: Apache-2.0
#include "kernels/generic/select.hpp"

#include "kernels/kernels.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <vector>

namespace fl {

namespace {

// A magnitude's 31 bits are three digits, the highest first.
struct Digit {
  int shift;
  int bits;
};
constexpr std::array digits = {Digit{20, 11}, Digit{10, 10}, Digit{0, 10}};

using Counts = std::array<std::uint64_t, 1 << 11>;

// The number of elements that are tested together first, because most such groups hold no
// candidate.
constexpr std::size_t step = 16;

template <class T>
std::uint32_t magnitude_of(T x) {
  return std::bit_cast<std::uint32_t>(x) & 0x7fffffff;
}

// Whether is_candidate(magnitude) is true for any of the `step` values at x. Magnitudes are signed
// numbers here, because all SIMD units can compare those. The loop is not unrolled, because the
// compiler would not vectorize it then.
template <class T, class IsCandidate>
bool any_candidate(const T* x, const IsCandidate& is_candidate) {
  std::int32_t found = 0;
#pragma GCC unroll 1
  for (std::size_t k = 0; k < step; ++k) {
    found |= is_candidate(static_cast<std::int32_t>(magnitude_of(x[k]))) ? -1 : 0;
  }
  return found != 0;
}

// Four histograms, because neighbours often have the same digit, and it is slow to read a counter
// that was just written.
template <class T>
void count_first(std::span<const T> x, std::array<Counts, 4>& counts) {
  std::size_t i = 0;
  for (; i + 4 <= x.size(); i += 4) {
    for (std::size_t k = 0; k < 4; ++k) ++counts[k][magnitude_of(x[i + k]) >> digits[0].shift];
  }
  for (; i < x.size(); ++i) ++counts[0][magnitude_of(x[i]) >> digits[0].shift];
}

// Counts a digit of the elements whose higher digits are `prefix`.
template <class T>
void count_next(std::span<const T> x, Digit digit, std::uint32_t prefix, Counts& counts) {
  const int above = digit.shift + digit.bits;
  const std::uint32_t mask = (1u << digit.bits) - 1;
  const auto least = static_cast<std::int32_t>(prefix << above);
  const std::int32_t most = least | ((1 << above) - 1);
  const auto count = [&](T value) {
    const std::uint32_t magnitude = magnitude_of(value);
    if (magnitude >> above == prefix) ++counts[magnitude >> digit.shift & mask];
  };
  std::size_t i = 0;
  for (; i + step <= x.size(); i += step) {
    if (!any_candidate(x.data() + i, [&](std::int32_t m) { return m >= least && m <= most; })) {
      continue;
    }
    for (std::size_t k = 0; k < step; ++k) count(x[i + k]);
  }
  for (; i < x.size(); ++i) count(x[i]);
}

// Appends the digit of the k-th largest element to cutoff.magnitude. cutoff.ties is its rank
// among the counted elements, and then its rank among those with that digit.
void narrow(const Counts& counts, Digit digit, Cutoff& cutoff) {
  std::uint32_t value = (1u << digit.bits) - 1;
  for (; cutoff.ties > counts[value]; --value) cutoff.ties -= counts[value];
  cutoff.magnitude = cutoff.magnitude << digit.bits | value;
}

template <class T>
Cutoff find_by_digits(std::span<const std::span<const T>> runs, std::uint64_t k) {
  Cutoff cutoff = {.magnitude = 0, .ties = k};
  std::array<Counts, 4> first{};
  for (const std::span<const T> run : runs) count_first(run, first);
  for (std::size_t i = 0; i < first[0].size(); ++i) {
    first[0][i] += first[1][i] + first[2][i] + first[3][i];
  }
  narrow(first[0], digits[0], cutoff);
  for (const Digit digit : {digits[1], digits[2]}) {
    Counts counts{};
    for (const std::span<const T> run : runs) count_next(run, digit, cutoff.magnitude, counts);
    narrow(counts, digit, cutoff);
  }
  return cutoff;
}

constexpr std::size_t counted_at_once = 1 << 20;

// The number of elements from which a guess pays: most elements are read once instead of three
// times.
constexpr std::size_t guess_min = 1 << 16;
constexpr std::size_t guess_stride = 251;  // A prime, because a tensor's rows may repeat a pattern.

// The magnitudes that are at least a guess. A sample gives the guess, a little too low on purpose.
// If the result has k magnitudes or more, they include the k largest. It is empty if the guess
// would leave too many.
template <class T>
std::vector<std::uint32_t> large_magnitudes(std::span<const std::span<const T>> runs,
                                            std::uint64_t k) {
  std::vector<std::uint32_t> sample;
  std::size_t at = 0;
  for (const std::span<const T> run : runs) {
    for (; at < run.size(); at += guess_stride) sample.push_back(magnitude_of(run[at]));
    at -= run.size();
  }
  const double expected = static_cast<double>(k) / guess_stride;
  const auto rank = static_cast<std::size_t>(expected + 4 * std::sqrt(expected) + 8);
  if (rank >= sample.size() / 8) return {};
  const auto guess = sample.begin() + static_cast<std::ptrdiff_t>(rank);
  std::ranges::nth_element(sample, guess, std::greater{});
  const std::size_t large_max = 2 * rank * guess_stride;
  std::vector<std::uint32_t> large;
  large.reserve(large_max);
  std::array<std::uint32_t, 4096> indices;
  for (const std::span<const T> run : runs) {
    for (std::size_t i = 0; i < run.size(); i += indices.size()) {
      const auto part = run.subspan(i, std::min(indices.size(), run.size() - i));
      const std::size_t found =
          kernels().find_at_least(part.data(), part.size(), *guess, indices.data());
      if (large.size() + found > large_max) return {};
      for (std::size_t j = 0; j < found; ++j) large.push_back(magnitude_of(part[indices[j]]));
    }
  }
  return large;
}

template <class T>
Cutoff find(std::span<const std::span<const T>> runs, std::uint64_t k) {
  std::size_t elements = 0;
  for (const std::span<const T> run : runs) elements += run.size();
  if (elements >= guess_min) {
    const std::vector<std::uint32_t> large = large_magnitudes(runs, k);
    const std::span<const std::uint32_t> words(large);
    if (large.size() >= k) return find_by_digits<std::uint32_t>(std::span(&words, 1), k);
  }
  return find_by_digits(runs, k);
}

template <class T>
std::size_t select(std::span<const T> x, Cutoff& cutoff, std::uint32_t* indices) {
  const std::size_t found = kernels().find_at_least(x.data(), x.size(), cutoff.magnitude, indices);
  // Of equal elements the first are selected. There is no branch: each index is written, and the
  // next one overwrites it if it is not selected.
  std::size_t selected = 0;
  for (std::size_t k = 0; k < found; ++k) {
    const std::uint32_t index = indices[k];
    const std::uint32_t is_tie = magnitude_of(x[index]) == cutoff.magnitude ? 1 : 0;
    const std::uint32_t has_room = cutoff.ties > 0 ? 1 : 0;
    indices[selected] = index;
    selected += 1 - (is_tie & (1 - has_room));
    cutoff.ties -= is_tie & has_room;
  }
  return selected;
}

}  // namespace

Cutoff find_largest(std::span<const std::span<const float>> runs, std::uint64_t k) {
  return find<float>(runs, k);
}

Cutoff find_largest(std::span<const std::uint32_t> words, std::uint64_t k) {
  return find<std::uint32_t>(std::span(&words, 1), k);
}

bool is_cutoff_of(std::span<const std::span<const float>> runs, std::uint64_t k,
                  const Cutoff& cutoff) {
  std::uint64_t above = 0;
  std::uint64_t equal = 0;
  for (const std::span<const float> run : runs) {
    for (std::size_t begin = 0; begin < run.size(); begin += counted_at_once) {
      // Counters are as wide as the values, 32 bits, so that the compiler vectorizes the loop.
      std::uint32_t above_here = 0;
      std::uint32_t equal_here = 0;
      for (const float x : run.subspan(begin, std::min(counted_at_once, run.size() - begin))) {
        const auto magnitude = static_cast<std::int32_t>(magnitude_of(x));
        above_here += magnitude > static_cast<std::int32_t>(cutoff.magnitude) ? 1 : 0;
        equal_here += magnitude == static_cast<std::int32_t>(cutoff.magnitude) ? 1 : 0;
      }
      above += above_here;
      equal += equal_here;
    }
  }
  return above < k && k <= above + equal && cutoff.ties == k - above;
}

std::size_t select_largest(std::span<const float> x, Cutoff& cutoff, std::uint32_t* indices) {
  return select(x, cutoff, indices);
}

std::size_t select_largest(std::span<const std::uint32_t> words, Cutoff& cutoff,
                           std::uint32_t* indices) {
  return select(words, cutoff, indices);
}

}  // namespace fl
