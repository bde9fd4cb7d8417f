// SPDX-License-Identifier: Apache-2.0
// The discrete Fourier transform of a power of two of numbers (Cooley and Tukey 1965). Pure; any
// thread.
#pragma once

#include <complex>
#include <span>

namespace fl::privacy {

/// Replaces x[n] by the sum over k of x[k] exp(-2 pi i k n / N). Requires: N = values.size() is a
/// power of two.
void transform(std::span<std::complex<double>> values);
/// The inverse of transform().
void transform_back(std::span<std::complex<double>> values);

}  // namespace fl::privacy
