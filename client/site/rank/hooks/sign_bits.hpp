// SPDX-License-Identifier: Apache-2.0
// Codes values as their signs and one scale, their mean absolute value. A byte has eight signs, the
// first in the lowest bit; 1 is negative, and zero counts as positive.
#pragma once

#include <torch/types.h>

namespace fl::site {

struct SignCode {
  torch::Tensor bits;   // ceil(n / 8) bytes; the last byte's spare bits are 0.
  torch::Tensor scale;  // One float [1], added up in double on a CPU, so the same on every machine.
};
/// Takes flat floats; all of them must be finite.
[[nodiscard]] SignCode sign_code_of(const torch::Tensor& values);

/// Makes the mean of what several ranks have coded. `bits` and `scales` have a row for each rank; a
/// row of `bits` may be longer than `mean` needs. `mean`, which is flat, becomes the coded values,
/// added up in the order of the ranks and divided by their number.
void mean_of_sign_codes(const torch::Tensor& bits, const torch::Tensor& scales, torch::Tensor mean);
/// Subtracts the values that the code stands for.
void subtract_sign_code(const SignCode& code, torch::Tensor values);

}  // namespace fl::site
