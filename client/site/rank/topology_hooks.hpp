// SPDX-License-Identifier: Apache-2.0
// Gradient hooks that know which ranks share a node.
#pragma once

#include "client/site/rank/gradient_hook.hpp"
#include "client/site/rank/topology.hpp"

#include <memory>

namespace fl::site {

/// The mean in fp32, by that topology: each rank divides, then sum_by() sums.
[[nodiscard]] std::unique_ptr<GradientHook> make_topology_mean(const Topology& topology,
                                                               Nodes nodes);

/// Full precision inside a node and `inner` between the nodes: a node's ranks sum their gradients
/// to their leader, the leaders reduce by `inner` in a group of their own, and each sends the mean
/// to its node. With one node it is the mean in fp32, and `inner` is not used. What `inner` keeps,
/// such as its error feedback, is the leaders'.
[[nodiscard]] std::unique_ptr<GradientHook> make_between_nodes(std::unique_ptr<GradientHook> inner,
                                                               Nodes nodes);

}  // namespace fl::site
