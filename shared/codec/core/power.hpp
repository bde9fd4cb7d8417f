// Powers with a fraction as the exponent, which are the same on every machine.
#pragma once

#include <cmath>
#include <cstdint>

namespace fl {

/// base^(step / steps), for base >= 0 and step < steps < 2^63: products of square roots, by the
/// binary digits of the exponent.
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

}  // namespace fl
