// SPDX-License-Identifier: Apache-2.0
#include "shared/privacy/fourier.hpp"

#include "shared/base/error.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <numbers>
#include <utility>
#include <vector>

namespace fl::privacy {

namespace {

using Complex = std::complex<double>;

/// Puts each value where its index, with the bits in reverse order, says.
void reverse_bits(std::span<Complex> values) {
  for (std::size_t i = 1, j = 0; i < values.size(); ++i) {
    std::size_t bit = values.size() / 2;
    for (; (j & bit) != 0; bit /= 2) j -= bit;
    j += bit;
    if (i < j) std::swap(values[i], values[j]);
  }
}

}  // namespace

void transform(std::span<Complex> values) {
  FL_ASSERT(std::has_single_bit(values.size()));
  reverse_bits(values);
  std::vector<Complex> roots(values.size() / 2);
  for (std::size_t i = 0; i < roots.size(); ++i) {
    const double part = static_cast<double>(i) / static_cast<double>(values.size());
    roots[i] = std::polar(1.0, -2 * std::numbers::pi * part);
  }
  for (std::size_t half = 1; half < values.size(); half *= 2) {
    const std::size_t stride = roots.size() / half;
    for (std::size_t begin = 0; begin < values.size(); begin += 2 * half) {
      for (std::size_t i = 0; i < half; ++i) {
        Complex& a = values[begin + i];
        Complex& b = values[begin + half + i];
        const Complex& root = roots[i * stride];
        // std::complex's own product looks for infinities.
        const Complex turned(b.real() * root.real() - b.imag() * root.imag(),
                             b.real() * root.imag() + b.imag() * root.real());
        b = a - turned;
        a += turned;
      }
    }
  }
}

void transform_back(std::span<Complex> values) {
  transform(values);
  std::reverse(values.begin() + 1, values.end());
  for (Complex& value : values) value /= static_cast<double>(values.size());
}

}  // namespace fl::privacy
