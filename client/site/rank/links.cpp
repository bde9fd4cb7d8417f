// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/links.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

namespace fl {

namespace {

using std::chrono::steady_clock;

/// The least time of some exchanges with another rank, in seconds.
double exchange_s(Ranks& ranks, int other, std::int64_t bytes, int repeats) {
  const torch::Tensor out =
      torch::zeros({bytes}, torch::TensorOptions(ranks.device()).dtype(torch::kUInt8));
  const torch::Tensor in = torch::empty_like(out);
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i <= repeats;
       ++i) {  // The first exchange is not counted: it connects, or wakes threads up.
    const auto begin = steady_clock::now();
    const Transfer send{.rank = other, .tensor = out};
    const Transfer receive{.rank = other, .tensor = in};
    ranks.exchange({&send, 1}, {&receive, 1});
    if (i > 0)
      least = std::min(least, std::chrono::duration<double>(steady_clock::now() - begin).count());
  }
  return least;
}

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

double steps_of_tree(std::size_t size) { return std::ceil(std::log2(static_cast<double>(size))); }

double ring_s(double bytes, const std::vector<int>& members, const Links& links) {
  const auto size = static_cast<double>(members.size());
  return 2 * (size - 1) * around(members, links).of(bytes / size);
}

/// The time of messages one after the other, from and to the first member.
double tree_s(double bytes, const std::vector<int>& members, const Links& links) {
  return 2 * steps_of_tree(members.size()) * among(members, links).of(bytes);
}

/// The time of W - 1 messages at once, which share a rank's way out.
double alltoall_s(double bytes, const std::vector<int>& members, const Links& links) {
  const Slowest worst = among(members, links);
  const auto size = static_cast<double>(members.size());
  return 2 * (worst.latency_s + bytes * (size - 1) / size * worst.s_per_byte);
}

double pipelined_s(double bytes, const std::vector<int>& members, const Links& links) {
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

}  // namespace

Links measure_links(Ranks& ranks, std::int64_t bytes, int repeats) {
  const auto size = static_cast<std::int64_t>(ranks.size());
  torch::Tensor times = torch::zeros({2, size, size}, torch::kFloat64);
  for (int first = 0; first < size; ++first) {
    for (int second = first + 1; second < size; ++second) {
      ranks.barrier();
      if (ranks.rank() != first && ranks.rank() != second) continue;
      const int other = ranks.rank() == first ? second : first;
      const double latency_s = exchange_s(ranks, other, 1, 4 * repeats);
      const double large_s = exchange_s(ranks, other, bytes, repeats);
      times[0][ranks.rank()][other] = latency_s;
      // A large message may by chance take no longer than a small one.
      times[1][ranks.rank()][other] =
          static_cast<double>(bytes) / std::max(large_s - latency_s, 0.05 * large_s);
    }
  }
  torch::Tensor on_device = times.to(ranks.device());
  ranks.sum(on_device);  // Each rank has filled its own rows.
  times = on_device.cpu();
  Links links;
  for (auto* matrix : {&links.latency_s, &links.bytes_per_s}) {
    const torch::Tensor values = times[matrix == &links.latency_s ? 0 : 1].contiguous();
    for (std::int64_t row = 0; row < size; ++row) {
      const double* first = values.const_data_ptr<double>() + row * size;
      matrix->emplace_back(first, first + size);
    }
  }
  return links;
}

double estimated_s(Topology topology, std::int64_t bytes, const Nodes& nodes, const Links& links) {
  std::vector<int> all;
  for (std::size_t rank = 0; rank < nodes.node.size(); ++rank)
    all.push_back(static_cast<int>(rank));
  if (all.size() < 2) return 0;
  const auto count = static_cast<double>(bytes);
  switch (topology) {
    case Topology::backend:
    case Topology::ring: return ring_s(count, all, links);
    case Topology::tree: return tree_s(count, all, links);
    case Topology::pipelined: return pipelined_s(count, all, links);
    case Topology::alltoall: return alltoall_s(count, all, links);
    case Topology::hierarchical: return hierarchical_s(count, nodes, links);
    case Topology::hybrid: return hybrid_s(count, nodes, links);
  }
  return 0;
}

Topology choose_topology(std::int64_t bytes, const Nodes& nodes, const Links& links) {
  constexpr Topology candidates[] = {Topology::backend,      Topology::tree,   Topology::alltoall,
                                     Topology::hierarchical, Topology::hybrid, Topology::pipelined};
  return *std::ranges::min_element(candidates, {}, [&](Topology topology) {
    return estimated_s(topology, bytes, nodes, links);
  });
}

}  // namespace fl
