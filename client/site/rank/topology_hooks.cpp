// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/topology_hooks.hpp"

#include <algorithm>
#include <utility>

namespace fl::site {

namespace {

class TopologyMean final : public GradientHook {
 public:
  TopologyMean(const Topology& topology, Nodes nodes)
      : topology_(topology), nodes_(std::move(nodes)) {}
  void reduce(Bucket& bucket, Ranks& ranks) override {
    bucket.gradient.div_(ranks.size());
    sum_by(topology_, bucket.gradient, nodes_, ranks);
  }

 private:
  Topology topology_;
  Nodes nodes_;
};

class BetweenNodes final : public GradientHook {
 public:
  BetweenNodes(std::unique_ptr<GradientHook> inner, Nodes nodes)
      : inner_(std::move(inner)), nodes_(std::move(nodes)), leader_ranks_(leaders_of(nodes_)) {}

  void reduce(Bucket& bucket, Ranks& ranks) override {
    // The leaders' mean of these is the mean over all ranks, also if nodes have unlike numbers.
    bucket.gradient.mul_(static_cast<double>(nodes_.count()) / ranks.size());
    sum_to_leader(bucket.gradient, nodes_, ranks);
    if (nodes_.count() > 1 && std::ranges::count(leader_ranks_, ranks.rank()) > 0) {
      if (!leaders_) leaders_ = ranks.subgroup(leader_ranks_, "leaders");
      inner_->reduce(bucket, *leaders_);
    }
    broadcast_from_leader(bucket.gradient, nodes_, ranks);
  }
  [[nodiscard]] HookState save() const override { return inner_->save(); }
  void load(const HookState& state) override { inner_->load(state); }

 private:
  std::unique_ptr<GradientHook> inner_;
  Nodes nodes_;
  std::vector<int> leader_ranks_;
  std::unique_ptr<Ranks> leaders_;
};

}  // namespace

std::unique_ptr<GradientHook> make_topology_mean(const Topology& topology, Nodes nodes) {
  return std::make_unique<TopologyMean>(topology, std::move(nodes));
}

std::unique_ptr<GradientHook> make_between_nodes(std::unique_ptr<GradientHook> inner, Nodes nodes) {
  return std::make_unique<BetweenNodes>(std::move(inner), std::move(nodes));
}

}  // namespace fl::site
