// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/grouped_parallel.hpp"

#include "client/site/mesh.hpp"
#include "shared/base/error.hpp"

#include <fmt/format.h>

namespace fl::site {

void GroupedParallel::enter_ranks(std::unique_ptr<Ranks> ranks) {
  ranks_ = std::move(ranks);
  const auto together = static_cast<int>(tensor_ranks_.division().ranks);
  FL_ASSERT(ranks_->size() % together == 0);
  const Mesh mesh({{"dp", ranks_->size() / together}, {"tp", together}});
  const std::vector<int> place = mesh.place_of(ranks_->rank());
  const auto observe = [this](Ranks& group) {
    group.observe([this](const Ranks::Call& call) {
      times_.called_beside(call);
      on_progress_();
    });
  };
  const auto along = [&](const char* axis, const std::string& name) {
    return ranks_->subgroup(mesh.group_of(axis, ranks_->rank()), name);
  };
  gradient_ranks_ = along("dp", fmt::format("gradients {}", place[1]));
  if (shares_layers()) {
    own_batch_ranks_ = along("dp", fmt::format("batches {}", place[1]));
    observe(*own_batch_ranks_);
    auto layers = along("tp", fmt::format("layers {}", place[0]));
    observe(*layers);
    tensor_ranks_.enter(std::move(layers));
  }
  observe(*ranks_);
  gradient_ranks_->observe([this](const Ranks::Call& call) {
    times_.called(call);
    on_progress_();
  });
  conductor_.emplace(*gradient_ranks_);
}

void GroupedParallel::leave() {
  conductor_.reset();
  gradient_ranks_.reset();
  tensor_ranks_.enter(nullptr);
  own_batch_ranks_.reset();
  ranks_.reset();
}

void GroupedParallel::broadcast(torch::Tensor& values) {
  on_device_of(*ranks_, values, [this](torch::Tensor& there) { ranks_->broadcast(there, 0); });
}

void GroupedParallel::sum(torch::Tensor& values) {
  on_device_of(batch_ranks(), values, [this](torch::Tensor& there) { batch_ranks().sum(there); });
}

void GroupedParallel::sum_of_all(torch::Tensor& values) {
  on_device_of(*ranks_, values, [this](torch::Tensor& there) { ranks_->sum(there); });
}

LayersPart GroupedParallel::part_of_layers(std::int64_t rank) const {
  return part_of_model(layout_, tensor_ranks_.division(), rank);
}

std::int64_t GroupedParallel::batch_rank_of(std::int64_t member) const {
  return member / tensor_ranks_.division().ranks;
}

std::vector<Piece> GroupedParallel::in_model(std::int64_t member, std::vector<Piece> held,
                                             std::vector<Piece> LayersPart::*which) const {
  if (!shares_layers()) return held;
  return within(part_of_layers(tensor_rank_of(member)).*which, held);
}

}  // namespace fl::site
