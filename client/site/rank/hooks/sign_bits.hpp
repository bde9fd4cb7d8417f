// SPDX-License-Identifier: Apache-2.0
// Values as their signs and one scale, their mean absolute value. Eight signs in a byte, the first
// in the lowest bit; 1 is negative, and zero counts as positive.
#pragma once

#include <torch/types.h>

namespace fl {

struct SignCode {
  torch::Tensor bits;   // ceil(n / 8) bytes; the last byte's spare bits are 0.
  torch::Tensor scale;  // One float [1], added up in double on a CPU, so the same on every machine.
};
/// Takes flat floats; all of them must be finite.
[[nodiscard]] SignCode sign_code_of(const torch::Tensor& values);

/// Codes of the same values by several ranks: `bits` and `scales` have a row for each, `bits` of
/// which the row begins with these values. `mean`, flat, becomes their values, added up in the
/// order of the ranks, divided by their number.
void mean_of_sign_codes(const torch::Tensor& bits, const torch::Tensor& scales, torch::Tensor mean);
/// Subtracts the code's values.
void subtract_sign_code(const SignCode& code, torch::Tensor values);

}  // namespace fl
