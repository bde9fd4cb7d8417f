// SPDX-License-Identifier: Apache-2.0
// Measures a network: the latency and the bandwidth of each pair of ranks, from which follows what
// a sum would take on them (client/site/topologies/topology_table.hpp).
#pragma once

#include "client/site/rank/ranks.hpp"
#include "client/site/topologies/network.hpp"

#include <cstdint>

namespace fl::site {

/// Measures each pair of ranks alone, both ways at once, with messages of `bytes`. A collective of
/// W (W - 1) / 2 turns; all ranks get the same numbers.
[[nodiscard]] Links measure_links(Ranks& ranks, std::int64_t bytes = 4 << 20, int repeats = 3);

}  // namespace fl::site
