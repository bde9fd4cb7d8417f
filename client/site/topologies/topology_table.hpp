// SPDX-License-Identifier: Apache-2.0
// The one table of topologies: the ways to sum a vector over a site's ranks, and what each costs.
// Ranks bind their sums to it by name (client/site/rank/topology.cpp); help, errors and
// `--topology auto` follow from the rows. Constants; any thread.
//
// Times are those of a rank in the model of Thakur 2005, "Optimization of collective communication
// operations in MPICH", section 3: a message takes the link's latency and its bytes' time.
#pragma once

#include "client/site/topologies/network.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <span>
#include <string_view>

namespace fl::site {

/// Returns the time of a sum of `bytes` over at least two ranks, in seconds.
using SecondsOfSum = double(double bytes, const Nodes& nodes, const Links& links);

/// A row of the table. Two are equal if they have the same name.
struct Topology {
  std::string_view name;
  SecondsOfSum* seconds = nullptr;
  /// Up to this many ranks the size of the pieces of a vector changes no bit of its sum
  /// (client/site/rank/bucket_size.hpp).
  int ranks_max_of_same_bits = 0;
  /// It goes with every --hook that has no groups of its own (HookRow::is_local); the hook then
  /// works between machines. The others are for sums alone, with --hook allreduce.
  bool takes_any_hook = false;

  friend bool operator==(const Topology& a, const Topology& b) { return a.name == b.name; }
};

/// All topologies, in the order in which help shows them. The first is the default: the backend's
/// own sum.
[[nodiscard]] std::span<const Topology> topologies();
[[nodiscard]] const Topology& backend_topology();
/// The topology for hooks that work between machines.
[[nodiscard]] const Topology& topology_for_hooks();

/// "ring" and so on. Errors: invalid_input, with all names.
[[nodiscard]] Result<Topology> parse_topology(std::string_view name);

/// The time that a sum takes by the model above, in seconds.
[[nodiscard]] double estimated_s(const Topology& topology, std::int64_t bytes, const Nodes& nodes,
                                 const Links& links);
/// The topology with the least estimated time for vectors of that size ("auto").
[[nodiscard]] Topology choose_topology(std::int64_t bytes, const Nodes& nodes, const Links& links);

/// The number of chunks in which ring and pipelined send so many elements.
[[nodiscard]] std::int64_t pipeline_chunks(std::int64_t elements);

}  // namespace fl::site
