// SPDX-License-Identifier: Apache-2.0
// Which topology is the fastest for a network: the latency and the bandwidth of each pair of ranks,
// and what a sum would take on them.
#pragma once

#include "client/site/rank/topology.hpp"

#include <cstdint>
#include <vector>

namespace fl {

/// The way from each rank to each other one.
struct Links {
  std::vector<std::vector<double>> latency_s;    // [from][to], of a message of one byte.
  std::vector<std::vector<double>> bytes_per_s;  // [from][to], of large messages.
};
/// Measures each pair of ranks alone, both ways at once, with messages of `bytes`. A collective of
/// W (W - 1) / 2 turns; all ranks get the same numbers.
[[nodiscard]] Links measure_links(Ranks& ranks, std::int64_t bytes = 4 << 20, int repeats = 3);

/// The time that sum_by() takes by the model above, in seconds.
[[nodiscard]] double estimated_s(Topology topology, std::int64_t bytes, const Nodes& nodes,
                                 const Links& links);
/// The topology with the least estimated time for vectors of that size ("auto").
[[nodiscard]] Topology choose_topology(std::int64_t bytes, const Nodes& nodes, const Links& links);

}  // namespace fl
