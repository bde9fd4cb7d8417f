// What a code's loss is called: for the benchmark of codecs, and for tests of what theory says.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace fl::testing {

/// |x - decoded|^2 / |x|^2, of two vectors of one length.
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

/// What a code of so many bits a value spends beyond the rate-distortion function of a Gaussian
/// source, R(D) = max(0, log2(sigma^2 / D) / 2). Cover and Thomas 2006, "Elements of information
/// theory", theorem 10.3.2. nmse > 0.
inline double bits_above_bound(double bits, double nmse) {
  return bits - std::max(0.0, -0.5 * std::log2(nmse));
}

}  // namespace fl::testing
