// SPDX-License-Identifier: Apache-2.0
// Powers with a fraction as the exponent. The result has the same bits on every machine.
#pragma once

#include <cmath>
#include <cstdint>

namespace fl::codec {

/// base^(step / steps), as a product of repeated square roots of base, one for each binary digit 1
/// of the exponent. Requires: base >= 0 and step < steps < 2^63.
[[nodiscard]] inline double fractional_power(double base, std::uint64_t step, std::uint64_t steps) {
  double power = 1;
  for (int digit = 0; digit < 52; ++digit) {
    base = std::sqrt(base);
    step *= 2;
    if (step < steps) continue;
    power *= base;
    step -= steps;
  }
  return power;
}

}  // namespace fl::codec
