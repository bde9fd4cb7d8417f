// SPDX-License-Identifier: Apache-2.0
// Measures of a code's loss, for the benchmark of codecs and for tests against theory.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace fl::testing {

/// |x - decoded|^2 / |x|^2. Both vectors have the same length.
inline double nmse(std::span<const float> x, std::span<const float> decoded) {
  double lost = 0;
  double whole = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double error = static_cast<double>(decoded[i]) - x[i];
    lost += error * error;
    whole += static_cast<double>(x[i]) * x[i];
  }
  return lost / whole;
}

/// How many bits per value a code with `bits` bits per value spends above the rate-distortion
/// function of a Gaussian source, R(D) = max(0, log2(sigma^2 / D) / 2). Cover and Thomas 2006,
/// "Elements of information theory", theorem 10.3.2. nmse > 0.
inline double bits_above_bound(double bits, double nmse) {
  return bits - std::max(0.0, -0.5 * std::log2(nmse));
}

}  // namespace fl::testing
