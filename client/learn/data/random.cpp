// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/random.hpp"

#include "shared/base/error.hpp"

#include <cmath>
#include <numeric>
#include <utility>

namespace fl {

namespace {

constexpr double ln_2 = 0x1.62e42fefa39efp-1;
// ln 2 in two parts, so that k * ln_2_high is exact for every exponent k of a double.
constexpr double ln_2_high = 0x1.62e42feep-1;
constexpr double ln_2_low = 0x1.a39ef35793c76p-33;

}  // namespace

double portable_log(double x) {
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);
  if (mantissa < 0x1.6a09e667f3bcdp-1) {  // Bring it to [sqrt(1/2), sqrt(2)).
    mantissa *= 2;
    --exponent;
  }
  // ln m = 2 artanh(s) = 2 (s + s^3/3 + s^5/5 + ...), |s| < 0.172: s^25 is below 2^-53.
  const double s = (mantissa - 1) / (mantissa + 1);
  double sum = 0;
  for (int power = 23; power >= 1; power -= 2) sum = sum * (s * s) + 1.0 / power;
  return exponent * ln_2_high + (exponent * ln_2_low + 2 * s * sum);
}

double portable_exp(double x) {
  const double k = std::nearbyint(x / ln_2);
  const double rest = (x - k * ln_2_high) - k * ln_2_low;
  // Taylor's series by Horner; |rest| < 0.35, so rest^14 / 14! is below 2^-53.
  double sum = 1;
  for (int term = 14; term >= 1; --term) sum = 1 + sum * rest / term;
  return std::ldexp(sum, static_cast<int>(k));
}

std::uint32_t Random::word() {
  if (used_ == 4) {
    block_ = philox::block_at(seed_, stream_, next_block_++);
    used_ = 0;
  }
  return block_.word[used_++];
}

double Random::uniform() {
  const std::uint64_t high = word() >> 6;
  const std::uint64_t low = word() >> 6;
  return (static_cast<double>(high << 26 | low) + 0.5) * 0x1p-52;
}

// Lemire, "Fast random integer generation in an interval", 2019, section 4: the high half of a
// product, drawn again for the few low halves that would make some results likelier.
std::uint32_t Random::below(std::uint32_t n) {
  FL_ASSERT(n > 0);
  const std::uint32_t uneven = (0u - n) % n;
  for (;;) {
    const std::uint64_t product = std::uint64_t{word()} * n;
    if (static_cast<std::uint32_t>(product) >= uneven) {
      return static_cast<std::uint32_t>(product >> 32);
    }
  }
}

// Marsaglia and Bray 1964, the polar method; the second value of the pair is not kept.
double Random::normal() {
  for (;;) {
    const double u = 2 * uniform() - 1;
    const double v = 2 * uniform() - 1;
    const double square = u * u + v * v;
    if (square < 1 && square > 0) return u * std::sqrt(-2 * portable_log(square) / square);
  }
}

// Marsaglia and Tsang, "A simple method for generating gamma variables", 2000, section 2; for
// alpha < 1 section 6: Gamma(alpha) is Gamma(alpha + 1) * U^(1/alpha).
double Random::log_gamma(double alpha) {
  FL_ASSERT(alpha > 0);
  if (alpha < 1) return log_gamma(alpha + 1) + portable_log(uniform()) / alpha;
  const double d = alpha - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal();
    const double root = 1 + c * x;
    if (root <= 0) continue;
    const double log_v = 3 * portable_log(root);
    const double v = root * root * root;
    if (portable_log(uniform()) < x * x / 2 + d * (1 - v + log_v)) return portable_log(d) + log_v;
  }
}

// Fisher and Yates, as in Knuth, volume 2, algorithm 3.4.2P.
void Random::shuffle(std::span<std::uint32_t> values) {
  for (std::size_t left = values.size(); left > 1; --left) {
    std::swap(values[left - 1], values[below(static_cast<std::uint32_t>(left))]);
  }
}

std::vector<std::uint32_t> shuffled_indices(std::uint32_t n, std::uint64_t seed,
                                            std::uint64_t stream) {
  std::vector<std::uint32_t> indices(n);
  std::iota(indices.begin(), indices.end(), 0u);
  Random(seed, stream).shuffle(indices);
  return indices;
}

std::uint64_t mix_seeds(std::uint64_t a, std::uint64_t b) {
  const philox::Block block = philox::block_at(a, b, 0);
  return std::uint64_t{block.word[0]} << 32 | block.word[1];
}

}  // namespace fl
