// SPDX-License-Identifier: Apache-2.0
// Exchanges with the other ranks that several hooks need. All ranks make the same calls.
#pragma once

#include "client/site/rank/gradient_hook.hpp"

#include <span>
#include <vector>

namespace fl::site {

/// The values of a contiguous tensor of floats on the CPU.
[[nodiscard]] inline std::span<float> span_of(const torch::Tensor& values) {
  return {values.data_ptr<float>(), static_cast<std::size_t>(values.numel())};
}
/// Whether the values are contiguous floats on the CPU. Then loops.hpp can work on them, which is
/// faster than libtorch's operations one after the other.
[[nodiscard]] inline bool is_plain(const torch::Tensor& values) {
  return values.is_cpu() && values.scalar_type() == torch::kFloat32 && values.is_contiguous();
}

/// Makes the mean over the ranks: each rank divides, then the backend sums.
void divide_and_sum(torch::Tensor& values, Ranks& ranks);

/// Whether all values of all ranks are finite.
[[nodiscard]] bool all_ranks_finite(const torch::Tensor& values, Ranks& ranks);
/// Whether all sums of a value and its residual are finite, on all ranks.
[[nodiscard]] bool all_ranks_finite(const torch::Tensor& values, const torch::Tensor& residual,
                                    Ranks& ranks);

/// Gathers `own` of all ranks as rows; all have the same shape.
[[nodiscard]] torch::Tensor gather(const torch::Tensor& own, Ranks& ranks);
/// Gathers a number of each rank, in the order of the ranks.
[[nodiscard]] std::vector<std::int64_t> gather(std::int64_t own, Ranks& ranks);

}  // namespace fl::site
