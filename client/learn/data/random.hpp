// Random numbers for partitions and shuffles: the same for the same (seed, stream) on every
// machine, which the distributions of <random> are not. Philox words (kernels/generic/philox.hpp)
// and IEEE operations only; no function of libm whose last bit differs between versions. One object
// is used by one thread at a time.
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
  /// In the open interval (0, 1), 52 bits.
  [[nodiscard]] double uniform();
  /// 0 to n - 1, each equally likely; n > 0.
  [[nodiscard]] std::uint32_t below(std::uint32_t n);
  [[nodiscard]] double normal();
  /// The logarithm of a Gamma(alpha, 1) value, alpha > 0. A small alpha has values that a double
  /// can't hold; their logarithms it can.
  [[nodiscard]] double log_gamma(double alpha);

  /// Every order equally likely.
  void shuffle(std::span<std::uint32_t> values);

 private:
  std::uint64_t seed_;
  std::uint64_t stream_;
  std::uint64_t next_block_ = 0;
  philox::Block block_{};
  unsigned used_ = 4;  // Words of block_ already given out.
};

/// 0 to n - 1 in the order that (seed, stream) says.
[[nodiscard]] std::vector<std::uint32_t> shuffled_indices(std::uint32_t n, std::uint64_t seed,
                                                          std::uint64_t stream);

/// One seed out of two; changing either changes it.
[[nodiscard]] std::uint64_t mix_seeds(std::uint64_t a, std::uint64_t b);

/// Natural logarithm of x > 0 (not subnormal) and exponential of x in [-700, 700], to within a few
/// units in the last place, with the same bits on every machine.
[[nodiscard]] double portable_log(double x);
[[nodiscard]] double portable_exp(double x);

}  // namespace fl
