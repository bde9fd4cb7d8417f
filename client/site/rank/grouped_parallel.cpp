// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/grouped_parallel.hpp"

#include "client/site/grid.hpp"
#include "client/site/rank/topology.hpp"
#include "client/site/site_messages.hpp"
#include "shared/base/error.hpp"

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string>

namespace fl::site {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A loss that depends on its inputs, and has no gradient for them. A backward pass of it tells,
/// for all parameters, that they have theirs.
struct Root : torch::autograd::Function<Root> {
  static torch::Tensor forward(AutogradContext* context, const at::TensorList& inputs) {
    context->saved_data["inputs"] = static_cast<std::int64_t>(inputs.size());
    return torch::zeros({});
  }
  static variable_list backward(AutogradContext* context, const variable_list& /*gradients*/) {
    return variable_list(static_cast<std::size_t>(context->saved_data["inputs"].toInt()));
  }
};

}  // namespace

void GroupedParallel::enter_ranks(std::unique_ptr<Ranks> ranks) {
  ranks_ = std::move(ranks);
  parts_.enter(ranks_->size());
  Grid grid{.tp = static_cast<int>(tensor_ranks_.division().ranks),
            .cp = static_cast<int>(context_ranks_.division().ranks),
            .ep = static_cast<int>(expert_ranks_.division().ranks),
            .pp = static_cast<int>(pipeline_ranks_.division().ranks)};
  FL_ASSERT(ranks_->size() % grid.together() == 0);
  grid.dp = static_cast<int>(ranks_->size() / grid.for_part());
  const Mesh mesh = mesh_of(grid);
  const Mesh experts = experts_mesh_of(grid);
  const Mesh layers({{"pp", grid.pp}, {"sharers", grid.dp * grid.cp}, {"tp", grid.tp}});
  const int rank = ranks_->rank();
  // The first of a group names it.
  const auto named = [](const char* what, const std::vector<int>& members) {
    return fmt::format("{} {}", what, members.front());
  };
  const auto observe = [this](Ranks& group, void (StepTimes::*note)(const Ranks::Call&)) {
    group.observe([this, note](const Ranks::Call& call) {
      (times_.*note)(call);
      on_progress_();
    });
  };
  const auto group = [&](const Mesh& of, const char* axis, const char* what) {
    const std::vector<int> members = of.group_of(axis, rank);
    return ranks_->subgroup(members, named(what, members));
  };
  const auto observed = [&](const Mesh& of, const char* axis, const char* what) {
    auto made = group(of, axis, what);
    observe(*made, &StepTimes::called_within);
    return made;
  };
  gradient_ranks_ = group(layers, "sharers", "gradients");
  const bool has_same_layers = grid.tp == 1 && grid.pp == 1;
  if (!has_same_layers) own_sharers_ = observed(layers, "sharers", "sharers");
  if (tensor_ranks_.is_divided()) tensor_ranks_.enter(observed(mesh, "tp", "layers"));
  if (context_ranks_.is_divided()) context_ranks_.enter(observed(mesh, "cp", "texts"));
  if (pipeline_ranks_.is_divided()) {
    auto stages = group(mesh, "pp", "stages");
    observe(*stages, &StepTimes::called_beside);  // PipelineRanks notes what it waits.
    pipeline_ranks_.enter(std::move(stages), times_);
  }
  if (expert_ranks_.is_divided()) {
    auto with_others = observed(experts, "ep", "experts");
    const bool may_hop = expert_ranks_.division().way == ExpertWay::two_hops;
    const Nodes nodes = may_hop ? find_nodes(host_name(), *with_others) : Nodes();
    expert_ranks_.enter(std::move(with_others), nodes);
    replicas_ = group(experts, "replicas", "replicas");
  }
  observe(*ranks_, &StepTimes::called_within);
  observe(*gradient_ranks_, &StepTimes::called);
  if (replicas_) observe(*replicas_, &StepTimes::called);
  conductor_.emplace(*gradient_ranks_);
}

void GroupedParallel::leave() {
  conductor_.reset();
  replicas_.reset();
  gradient_ranks_.reset();
  expert_ranks_.leave();
  pipeline_ranks_.leave();
  context_ranks_.enter(nullptr);
  tensor_ranks_.enter(nullptr);
  own_sharers_.reset();
  ranks_.reset();
}

void GroupedParallel::reduce_stages(const std::vector<torch::Tensor>& parameters) {
  before_forward(parameters, true);
  backward(Root::apply(at::TensorList(parameters)), true);
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

}  // namespace fl::site
