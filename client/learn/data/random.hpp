// SPDX-License-Identifier: Apache-2.0
// Random numbers for partitions and shuffles. The same (seed, stream) gives the same numbers on
// every machine, unlike the distributions of <random>. Only Philox words
// (kernels/generic/philox.hpp) and IEEE operations are used, and no libm function whose last bit
// may differ between versions. One thread at a time uses an object.
#pragma once

#include "kernels/generic/philox.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace fl {

class Random {
 public:
  /// Streams of one seed are independent of each other.
  Random(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}

  [[nodiscard]] std::uint32_t word();
  /// Uniform in the open interval (0, 1), with 52 random bits.
  [[nodiscard]] double uniform();
  /// Uniform in 0 to n - 1; n > 0.
  [[nodiscard]] std::uint32_t below(std::uint32_t n);
  [[nodiscard]] double normal();
  /// The logarithm of a Gamma(alpha, 1) value, alpha > 0. With a small alpha the value may be too
  /// small for a double; its logarithm is not.
  [[nodiscard]] double log_gamma(double alpha);

  /// Puts the values into a random order; every order is equally likely.
  void shuffle(std::span<std::uint32_t> values);

 private:
  std::uint64_t seed_;
  std::uint64_t stream_;
  std::uint64_t next_block_ = 0;
  philox::Block block_{};
  unsigned used_ = 4;  // Words of block_ already given out.
};

/// The numbers 0 to n - 1 in a random order that depends on (seed, stream).
[[nodiscard]] std::vector<std::uint32_t> shuffled_indices(std::uint32_t n, std::uint64_t seed,
                                                          std::uint64_t stream);

/// Combines two seeds to one. A change of either changes the result.
[[nodiscard]] std::uint64_t mix_seeds(std::uint64_t a, std::uint64_t b);

/// The natural logarithm of x > 0 (not subnormal) and the exponential of x in [-700, 700]. They are
/// exact to a few units in the last place and have the same bits on every machine.
[[nodiscard]] double portable_log(double x);
[[nodiscard]] double portable_exp(double x);

}  // namespace fl
