// SPDX-License-Identifier: Apache-2.0
// What several hooks do with the other ranks. All ranks make the same calls.
#pragma once

#include "client/site/rank/gradient_hook.hpp"

#include <span>
#include <vector>

namespace fl {

/// The values of a contiguous tensor of floats on the CPU.
[[nodiscard]] inline std::span<float> span_of(const torch::Tensor& values) {
  return {values.data_ptr<float>(), static_cast<std::size_t>(values.numel())};
}
/// Whether they are such: then loops.hpp can work on them, which is faster than libtorch's
/// operations one after the other.
[[nodiscard]] inline bool is_plain(const torch::Tensor& values) {
  return values.is_cpu() && values.scalar_type() == torch::kFloat32 && values.is_contiguous();
}

/// The bucket's mean: each rank divides, then the backend sums.
void divide_and_sum(torch::Tensor& values, Ranks& ranks);

/// Whether all values of all ranks are finite.
[[nodiscard]] bool all_finite(const torch::Tensor& values, Ranks& ranks);
/// Whether all sums of a value and its residual are.
[[nodiscard]] bool all_finite(const torch::Tensor& values, const torch::Tensor& residual,
                              Ranks& ranks);

/// `own` of all ranks, in their order; bytes, of a length that may differ from rank to rank.
/// bytes[r] is the length of rank r's.
[[nodiscard]] std::vector<torch::Tensor> gather_bytes(const torch::Tensor& own,
                                                      const std::vector<std::int64_t>& bytes,
                                                      Ranks& ranks);
/// `own` of all ranks: rows of the same shape.
[[nodiscard]] torch::Tensor gather(const torch::Tensor& own, Ranks& ranks);
/// A number of each rank, in their order.
[[nodiscard]] std::vector<std::int64_t> gather(std::int64_t own, Ranks& ranks);

}  // namespace fl
