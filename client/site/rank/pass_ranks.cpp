// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/pass_ranks.hpp"

#include <array>
#include <vector>

namespace fl::site {

template <class Group>
void PassRanks<Group>::sum(torch::Tensor& values) {
  on_device_of(*ranks_, values, [this](torch::Tensor& there) { ranks_->sum(there); });
}

template <class Group>
void PassRanks<Group>::maximum(torch::Tensor& values) {
  values.copy_(gather(values).amax(0));
}

template <class Group>
torch::Tensor PassRanks<Group>::gather(const torch::Tensor& values) {
  const torch::Tensor there = values.to(ranks_->device());
  std::vector<std::int64_t> shape = there.sizes().vec();
  shape.insert(shape.begin(), ranks_->size());
  torch::Tensor all = torch::empty(shape, there.options());
  ranks_->all_gather(all, there);
  return all.to(values.device());
}

template <class Group>
torch::Tensor PassRanks<Group>::exchange_there(const torch::Tensor& there) {
  torch::Tensor received = torch::empty_like(there);
  const std::vector<std::int64_t> one_each(static_cast<std::size_t>(ranks_->size()), 1);
  ranks_->all_to_all(received, there, one_each, one_each);
  return received;
}

template <class Group>
torch::Tensor PassRanks<Group>::exchange(const torch::Tensor& parts) {
  return exchange_there(parts.to(ranks_->device())).to(parts.device());
}

template <class Group>
torch::Tensor PassRanks<Group>::sum_parts(const torch::Tensor& parts) {
  const torch::Tensor received = exchange_there(parts.to(ranks_->device()));
  torch::Tensor sums = received[0].to(torch::kFloat32, /*non_blocking=*/false, /*copy=*/true);
  for (int rank = 1; rank < ranks_->size(); ++rank) sums.add_(received[rank]);
  return sums.to(parts.options());
}

template <class Group>
torch::Tensor PassRanks<Group>::pass_on(const torch::Tensor& values) {
  const torch::Tensor there = values.to(ranks_->device());
  torch::Tensor received = torch::empty_like(there);
  const int size = ranks_->size();
  const std::array<Transfer, 1> next{{{(ranks_->rank() + 1) % size, there}}};
  const std::array<Transfer, 1> before{{{(ranks_->rank() + size - 1) % size, received}}};
  ranks_->exchange(next, before);
  return received.to(values.device());
}

template class PassRanks<TensorGroup>;
template class PassRanks<ContextGroup>;
template class PassRanks<PipelineGroup>;
template class PassRanks<ExpertGroup>;

}  // namespace fl::site
