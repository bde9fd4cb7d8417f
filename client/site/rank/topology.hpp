// SPDX-License-Identifier: Apache-2.0
// Sums over the ranks by each topology of the table, out of sends and receives. The backend's own
// sum() is a ring; the others are for networks on which a ring is not the best, and for sums in
// rank order. All ranks get the same bits in each of them, and the same bits from run to run.
// Called by the thread that makes the group's calls: the conductor's (conductor.hpp), and for
// find_nodes() the thread that enters the group, before there is a conductor.
#pragma once

#include "client/site/rank/ranks.hpp"
#include "client/site/topologies/topology_table.hpp"

#include <string_view>

namespace fl::site {

/// Ranks with the same name of a host, of at most 64 bytes, share a node. A collective.
[[nodiscard]] Nodes find_nodes(std::string_view host, Ranks& ranks);

/// Sums over the ranks, in place. `values` is flat and contiguous. Throws RankFailure. hybrid needs
/// nodes.is_even(), and is hierarchical where that is not so.
void sum_by(const Topology& topology, torch::Tensor& values, const Nodes& nodes, Ranks& ranks);

/// The two halves of hierarchical: the sum of a node's ranks goes to its leader (the others' values
/// lose their meaning), and the leader's values go to its node.
void sum_to_leader(torch::Tensor& values, const Nodes& nodes, Ranks& ranks);
void broadcast_from_leader(torch::Tensor& values, const Nodes& nodes, Ranks& ranks);

}  // namespace fl::site
