// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/tensor_ranks.hpp"

#include <vector>

namespace fl::site {

void TensorRanks::sum(torch::Tensor& values) {
  on_device_of(*ranks_, values, [this](torch::Tensor& there) { ranks_->sum(there); });
}

void TensorRanks::maximum(torch::Tensor& values) { values.copy_(gather(values).amax(0)); }

torch::Tensor TensorRanks::gather(const torch::Tensor& values) {
  const torch::Tensor there = values.to(ranks_->device());
  std::vector<std::int64_t> shape = there.sizes().vec();
  shape.insert(shape.begin(), ranks_->size());
  torch::Tensor all = torch::empty(shape, there.options());
  ranks_->all_gather(all, there);
  return all.to(values.device());
}

torch::Tensor TensorRanks::sum_parts(const torch::Tensor& parts) {
  const torch::Tensor there = parts.to(ranks_->device());
  torch::Tensor received = torch::empty_like(there);
  const std::vector<std::int64_t> one_each(static_cast<std::size_t>(ranks_->size()), 1);
  ranks_->all_to_all(received, there, one_each, one_each);
  torch::Tensor sums = received[0].to(torch::kFloat32, /*non_blocking=*/false, /*copy=*/true);
  for (int rank = 1; rank < ranks_->size(); ++rank) sums.add_(received[rank]);
  return sums.to(parts.options());
}

}  // namespace fl::site
