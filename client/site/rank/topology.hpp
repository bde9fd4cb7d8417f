// SPDX-License-Identifier: Apache-2.0
// Ways to sum a vector over the ranks, out of sends and receives. The backend's own sum() is a
// ring; these are for networks on which a ring is not the best, and for sums in rank order. All
// ranks get the same bits in each of them, and the same bits from run to run.
//
// Costs are per rank, of a vector of n bytes over W ranks, in the model of Thakur 2005,
// "Optimization of collective communication operations in MPICH", section 3: a message takes its
// latency a and its bytes' time b.
#pragma once

#include "client/site/rank/ranks.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

enum class Topology {
  backend,    // Ranks::sum().
  ring,       // Reduce-scatter and all-gather around a ring: 2 (W - 1) a + 2 n (W - 1) / W b.
  tree,       // To rank 0 and back along a binomial tree: 2 ceil(log2 W) (a + n b).
  pipelined,  // Along a chain to the last rank and back, in chunks: (2 W + chunks) (a + n / chunks
              // b).
  alltoall,   // Each rank adds up a part in rank order: a ring's bytes, in W messages at once.
  hierarchical,  // Within each node to its leader, a ring of the leaders, and back.
  hybrid,        // Within each node a reduce-scatter, between nodes a ring for each part, and back.
};

/// "ring" and so on. Errors: invalid_input, with all names.
[[nodiscard]] Result<Topology> parse_topology(std::string_view name);
[[nodiscard]] std::string_view to_string(Topology topology);

/// Which ranks share a node: node[r] is the node of rank r; nodes are numbered from 0 in the order
/// of their first ranks.
struct Nodes {
  std::vector<int> node;
  [[nodiscard]] int count() const;
  /// The ranks of a node, in order. The first is its leader.
  [[nodiscard]] std::vector<int> ranks_of(int number) const;
  /// Whether there are several nodes, all with the same number of ranks, and more than one.
  [[nodiscard]] bool is_even() const;
};
/// The leaders of all nodes, in the order of the nodes.
[[nodiscard]] std::vector<int> leaders_of(const Nodes& nodes);
/// Ranks with the same name of a host, of at most 64 bytes, share a node. A collective.
[[nodiscard]] Nodes find_nodes(std::string_view host, Ranks& ranks);

/// Sums over the ranks, in place. `values` is flat and contiguous. Throws RankFailure. hybrid needs
/// nodes.is_even(), and is hierarchical where that is not so.
void sum_by(Topology topology, torch::Tensor& values, const Nodes& nodes, Ranks& ranks);

/// The two halves of hierarchical: the sum of a node's ranks goes to its leader (the others' values
/// lose their meaning), and the leader's values go to its node.
void sum_to_leader(torch::Tensor& values, const Nodes& nodes, Ranks& ranks);
void broadcast_from_leader(torch::Tensor& values, const Nodes& nodes, Ranks& ranks);

/// The number of chunks in which ring and pipelined send so many elements.
[[nodiscard]] std::int64_t pipeline_chunks(std::int64_t elements);

}  // namespace fl
