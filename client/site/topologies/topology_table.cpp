// SPDX-License-Identifier: Apache-2.0
#include "client/site/topologies/topology_table.hpp"

#include "shared/base/spec/nearest_name.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

namespace fl::site {

namespace {

/// A chunk is long enough that its latency counts little.
constexpr std::int64_t chunk_elements_min = 262'144;
constexpr std::int64_t chunks_max = 16;

/// The seconds that the slowest link among some ranks takes for a message.
struct Slowest {
  double latency_s = 0;
  double s_per_byte = 0;
  [[nodiscard]] double of(double bytes) const { return latency_s + bytes * s_per_byte; }
};

Slowest slowest(const std::vector<std::pair<int, int>>& pairs, const Links& links) {
  Slowest worst;
  for (const auto& [from, to] : pairs) {
    const auto i = static_cast<std::size_t>(from);
    const auto j = static_cast<std::size_t>(to);
    worst.latency_s = std::max(worst.latency_s, links.latency_s[i][j]);
    worst.s_per_byte = std::max(worst.s_per_byte, 1 / links.bytes_per_s[i][j]);
  }
  return worst;
}

Slowest around(const std::vector<int>& members, const Links& links) {
  std::vector<std::pair<int, int>> pairs;
  for (std::size_t i = 0; i < members.size() && members.size() > 1; ++i)
    pairs.emplace_back(members[i], members[(i + 1) % members.size()]);
  return slowest(pairs, links);
}

Slowest among(const std::vector<int>& members, const Links& links) {
  std::vector<std::pair<int, int>> pairs;
  for (const int from : members)
    for (const int to : members)
      if (from != to) pairs.emplace_back(from, to);
  return slowest(pairs, links);
}

std::vector<int> all_of(const Nodes& nodes) {
  std::vector<int> all;
  for (std::size_t rank = 0; rank < nodes.node.size(); ++rank)
    all.push_back(static_cast<int>(rank));
  return all;
}

double steps_of_tree(std::size_t size) { return std::ceil(std::log2(static_cast<double>(size))); }

double ring_s(double bytes, const std::vector<int>& members, const Links& links) {
  const auto size = static_cast<double>(members.size());
  return 2 * (size - 1) * around(members, links).of(bytes / size);
}

/// The time of messages one after the other, from and to the first member.
double tree_s(double bytes, const std::vector<int>& members, const Links& links) {
  return 2 * steps_of_tree(members.size()) * among(members, links).of(bytes);
}

double ring_of_all_s(double bytes, const Nodes& nodes, const Links& links) {
  return ring_s(bytes, all_of(nodes), links);
}

double tree_of_all_s(double bytes, const Nodes& nodes, const Links& links) {
  return tree_s(bytes, all_of(nodes), links);
}

/// The time of W - 1 messages at once, which share a rank's way out.
double alltoall_s(double bytes, const Nodes& nodes, const Links& links) {
  const std::vector<int> members = all_of(nodes);
  const Slowest worst = among(members, links);
  const auto size = static_cast<double>(members.size());
  return 2 * (worst.latency_s + bytes * (size - 1) / size * worst.s_per_byte);
}

double pipelined_s(double bytes, const Nodes& nodes, const Links& links) {
  const std::vector<int> members = all_of(nodes);
  std::vector<std::pair<int, int>> pairs;
  for (std::size_t i = 0; i + 1 < members.size(); ++i) {
    pairs.emplace_back(members[i], members[i + 1]);
    pairs.emplace_back(members[i + 1], members[i]);
  }
  const auto chunks = static_cast<double>(pipeline_chunks(static_cast<std::int64_t>(bytes) / 4));
  const double steps = 2 * (static_cast<double>(members.size()) - 2 + chunks);
  return steps * slowest(pairs, links).of(bytes / chunks);
}

double hierarchical_s(double bytes, const Nodes& nodes, const Links& links) {
  double inside = 0;
  for (int number = 0; number < nodes.count(); ++number)
    inside = std::max(inside, tree_s(bytes, nodes.ranks_of(number), links));
  return inside + ring_s(bytes, leaders_of(nodes), links);
}

/// The time of parts that cross between the nodes at once, and share a node's way out.
double hybrid_s(double bytes, const Nodes& nodes, const Links& links) {
  if (!nodes.is_even()) return hierarchical_s(bytes, nodes, links);
  double inside = 0;
  for (int number = 0; number < nodes.count(); ++number)
    inside = std::max(inside, ring_s(bytes, nodes.ranks_of(number), links));
  const double count = nodes.count();
  return inside + 2 * (count - 1) * around(leaders_of(nodes), links).of(bytes / count);
}

// The order of the rows is the order in help, and of equally fast ones the first is chosen.
constexpr Topology table[] = {
    // Ranks::sum(), which is a ring.
    {.name = "backend", .seconds = ring_of_all_s, .ranks_max_of_same_bits = 2},
    // Reduce-scatter and all-gather around a ring.
    {.name = "ring", .seconds = ring_of_all_s},
    // To rank 0 and back along a binomial tree.
    {.name = "tree", .seconds = tree_of_all_s},
    // Along a chain to the last rank and back, in chunks.
    {.name = "pipelined", .seconds = pipelined_s},
    // Each rank adds up a part in rank order: a ring's bytes, in W messages at once.
    {.name = "alltoall",
     .seconds = alltoall_s,
     .ranks_max_of_same_bits = std::numeric_limits<int>::max()},
    // Within each node to its leader, a ring of the leaders, and back.
    {.name = "hierarchical", .seconds = hierarchical_s, .takes_any_hook = true},
    // Within each node a reduce-scatter, between nodes a ring for each part, and back.
    {.name = "hybrid", .seconds = hybrid_s},
};

}  // namespace

std::span<const Topology> topologies() { return table; }

const Topology& backend_topology() { return table[0]; }

const Topology& topology_for_hooks() {
  return *std::ranges::find_if(table, &Topology::takes_any_hook);
}

Result<Topology> parse_topology(std::string_view name) {
  const auto* const row = std::ranges::find(table, name, &Topology::name);
  if (row != std::end(table)) return *row;
  std::string names;
  for (const Topology& known : table) names += fmt::format("{}, ", known.name);
  return Error(Errc::invalid_input, fmt::format("no topology '{}'; there are: {}auto{}", name,
                                                names, did_you_mean(name, table, &Topology::name)));
}

double estimated_s(const Topology& topology, std::int64_t bytes, const Nodes& nodes,
                   const Links& links) {
  return nodes.node.size() < 2 ? 0 : topology.seconds(static_cast<double>(bytes), nodes, links);
}

Topology choose_topology(std::int64_t bytes, const Nodes& nodes, const Links& links) {
  return *std::ranges::min_element(table, {}, [&](const Topology& topology) {
    return estimated_s(topology, bytes, nodes, links);
  });
}

std::int64_t pipeline_chunks(std::int64_t elements) {
  return std::clamp<std::int64_t>(elements / chunk_elements_min, 1, chunks_max);
}

}  // namespace fl::site
