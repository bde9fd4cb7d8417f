// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/grouped_parallel.hpp"

#include "client/site/mesh.hpp"

namespace fl::site {

void GroupedParallel::enter_ranks(std::unique_ptr<Ranks> ranks) {
  ranks_ = std::move(ranks);
  const Mesh mesh({{"dp", ranks_->size()}});
  gradient_ranks_ = ranks_->subgroup(mesh.group_of("dp", ranks_->rank()), "gradients");
  ranks_->observe([this](const Ranks::Call& call) {
    times_.called_beside(call);
    on_progress_();
  });
  gradient_ranks_->observe([this](const Ranks::Call& call) {
    times_.called(call);
    on_progress_();
  });
  conductor_.emplace(*gradient_ranks_);
}

void GroupedParallel::leave() {
  conductor_.reset();
  gradient_ranks_.reset();
  ranks_.reset();
}

void GroupedParallel::broadcast(torch::Tensor& values) {
  on_device_of(*ranks_, values, [this](torch::Tensor& there) { ranks_->broadcast(there, 0); });
}

void GroupedParallel::sum(torch::Tensor& values) {
  on_device_of(*ranks_, values, [this](torch::Tensor& there) { ranks_->sum(there); });
}

}  // namespace fl::site
