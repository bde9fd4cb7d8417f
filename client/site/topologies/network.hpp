// SPDX-License-Identifier: Apache-2.0
// The network of a site's ranks: which ranks share a machine, and how fast the links between them
// are. The time of a sum depends on it. Plain values; any thread.
#pragma once

#include <vector>

namespace fl::site {

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

/// The way from each rank to each other one.
struct Links {
  std::vector<std::vector<double>> latency_s;    // [from][to], of a message of one byte.
  std::vector<std::vector<double>> bytes_per_s;  // [from][to], of large messages.
};

}  // namespace fl::site
