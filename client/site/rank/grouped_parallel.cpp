// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/grouped_parallel.hpp"

#include "client/site/grid.hpp"
#include "shared/base/error.hpp"

#include <fmt/format.h>

namespace fl::site {

void GroupedParallel::enter_ranks(std::unique_ptr<Ranks> ranks) {
  ranks_ = std::move(ranks);
  Grid grid{.tp = static_cast<int>(tensor_ranks_.division().ranks),
            .cp = static_cast<int>(context_ranks_.division().ranks)};
  FL_ASSERT(ranks_->size() % grid.together() == 0);
  grid.dp = ranks_->size() / grid.together();
  const Mesh mesh = mesh_of(grid);
  const Mesh layers({{"sharers", grid.dp * grid.cp}, {"tp", grid.tp}});
  const int rank = ranks_->rank();
  const int part = mesh.place_of(rank)[2];
  const auto observe = [this](Ranks& group) {
    group.observe([this](const Ranks::Call& call) {
      times_.called_beside(call);
      on_progress_();
    });
  };
  const auto group = [&](const Mesh& of, const char* axis, const std::string& name) {
    return ranks_->subgroup(of.group_of(axis, rank), name);
  };
  gradient_ranks_ = group(layers, "sharers", fmt::format("gradients {}", part));
  if (shares_layers()) {
    own_sharers_ = group(layers, "sharers", fmt::format("sharers {}", part));
    observe(*own_sharers_);
    auto with_layers = group(mesh, "tp", fmt::format("layers {}", rank / grid.tp));
    observe(*with_layers);
    tensor_ranks_.enter(std::move(with_layers));
  }
  if (context_ranks_.is_divided()) {
    auto with_texts = group(mesh, "cp", fmt::format("texts {} {}", rank / grid.together(), part));
    observe(*with_texts);
    context_ranks_.enter(std::move(with_texts));
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
  context_ranks_.enter(nullptr);
  tensor_ranks_.enter(nullptr);
  own_sharers_.reset();
  ranks_.reset();
}

void GroupedParallel::broadcast(torch::Tensor& values) {
  on_device_of(*ranks_, values, [this](torch::Tensor& there) { ranks_->broadcast(there, 0); });
}

void GroupedParallel::sum(torch::Tensor& values) {
  on_device_of(sharers(), values, [this](torch::Tensor& there) { sharers().sum(there); });
}

void GroupedParallel::sum_of_all(torch::Tensor& values) {
  on_device_of(*ranks_, values, [this](torch::Tensor& there) { ranks_->sum(there); });
}

LayersPart GroupedParallel::part_of_layers(std::int64_t rank) const {
  return part_of_model(layout_, tensor_ranks_.division(), rank);
}

std::int64_t GroupedParallel::sharer_of(std::int64_t member) const {
  return member / tensor_ranks_.division().ranks;
}

std::vector<Piece> GroupedParallel::in_model(std::int64_t member, std::vector<Piece> held,
                                             std::vector<Piece> LayersPart::*which) const {
  if (!shares_layers()) return held;
  return within(part_of_layers(tensor_rank_of(member)).*which, held);
}

}  // namespace fl::site
