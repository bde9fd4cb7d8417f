// SPDX-License-Identifier: Apache-2.0
// Signs as bits, eight in a byte, the first element in the lowest bit. Zero counts as positive.
#pragma once

#include <torch/types.h>

namespace fl {

/// `values` is flat. The result has ceil(n / 8) bytes; the last byte's spare bits are 0.
[[nodiscard]] torch::Tensor pack_signs(const torch::Tensor& values);
/// `count` floats, 1 or -1.
[[nodiscard]] torch::Tensor unpack_signs(const torch::Tensor& bytes, std::int64_t count);

}  // namespace fl
