// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/topology.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace fl::site {

namespace {

using Members = std::vector<int>;  // Ranks of the group that sum among themselves, in order.

constexpr std::size_t host_bytes = 64;

Members node_of(const Nodes& nodes, const Ranks& ranks) {
  return nodes.ranks_of(nodes.node.at(static_cast<std::size_t>(ranks.rank())));
}

Members all_of(const Ranks& ranks) {
  Members members;
  for (int rank = 0; rank < ranks.size(); ++rank) members.push_back(rank);
  return members;
}

void backend(torch::Tensor& values, const Nodes&, Ranks& ranks) { ranks.sum(values); }

int place_of(const Members& members, int rank) {
  return static_cast<int>(std::ranges::find(members, rank) - members.begin());
}

/// Part `number` of `count` nearly equal parts.
torch::Tensor part_of(const torch::Tensor& values, std::int64_t number, std::int64_t count) {
  const std::int64_t begin = values.numel() * number / count;
  return values.narrow(0, begin, values.numel() * (number + 1) / count - begin);
}

/// Memory for `count` values that arrive, valid until the next call of this thread. It is kept from
/// sum to sum, because a ring of 32 MiB took twice as long with fresh pages.
torch::Tensor scratch_for(const torch::Tensor& values, std::int64_t count) {
  thread_local torch::Tensor kept;
  if (!kept.defined() || kept.numel() < count || kept.scalar_type() != values.scalar_type() ||
      kept.device() != values.device())
    kept = torch::empty({count}, values.options());
  return kept.narrow(0, 0, count);
}

/// Divides values into chunks, each from or to that rank.
std::vector<Transfer> chunks_with(int rank, const torch::Tensor& values) {
  std::vector<Transfer> transfers;
  const std::int64_t count = pipeline_chunks(values.numel());
  for (std::int64_t i = 0; i < count; ++i)
    transfers.push_back({.rank = rank, .tensor = part_of(values, i, count)});
  return transfers;
}

/// A member's neighbours in a ring.
struct Ring {
  Ring(const Members& members, const Ranks& ranks)
      : size(static_cast<int>(members.size())),
        place(place_of(members, ranks.rank())),
        next(members[static_cast<std::size_t>((place + 1) % size)]),
        previous(members[static_cast<std::size_t>((place + size - 1) % size)]) {}
  /// The part that lies `steps` places before this member's own.
  [[nodiscard]] torch::Tensor part_before(const torch::Tensor& values, int steps) const {
    return part_of(values, (place + 2 * size - steps) % size, size);
  }
  int size;
  int place;
  int next;
  int previous;
};

/// Afterwards the member at place p has the sum of part p; the other parts have partial sums. Parts
/// go in chunks: one is added while the next arrives.
void add_reduce_scatter(std::vector<Step>& steps, const torch::Tensor& values, const Ring& ring) {
  const std::int64_t longest = (values.numel() + ring.size - 1) / ring.size;
  const torch::Tensor scratch = scratch_for(values, longest * (ring.size - 1));
  for (int step = 1; step < ring.size; ++step) {
    const torch::Tensor mine = ring.part_before(values, step + 1);
    const std::vector<Transfer> sums = chunks_with(ring.previous, mine);
    const std::vector<Transfer> receives =
        chunks_with(ring.previous, scratch.narrow(0, (step - 1) * longest, mine.numel()));
    steps.push_back({.sends = chunks_with(ring.next, ring.part_before(values, step)),
                     .receives = receives,
                     .received = [=](std::size_t i) { sums[i].tensor.add_(receives[i].tensor); }});
  }
}

void add_all_gather(std::vector<Step>& steps, const torch::Tensor& values, const Ring& ring) {
  for (int step = 0; step < ring.size - 1; ++step)
    steps.push_back({.sends = chunks_with(ring.next, ring.part_before(values, step)),
                     .receives = chunks_with(ring.previous, ring.part_before(values, step + 1))});
}

void ring_of(torch::Tensor& values, const Members& members, Ranks& ranks) {
  if (members.size() < 2) return;
  const Ring ring(members, ranks);
  std::vector<Step> steps;
  add_reduce_scatter(steps, values, ring);
  add_all_gather(steps, values, ring);
  ranks.exchange(steps);
}

void ring(torch::Tensor& values, const Nodes&, Ranks& ranks) {
  ring_of(values, all_of(ranks), ranks);
}

/// The sum of the members goes to the first one, along a binomial tree.
void tree_reduce(torch::Tensor& values, const Members& members, Ranks& ranks) {
  const auto size = static_cast<int>(members.size());
  const int place = place_of(members, ranks.rank());
  torch::Tensor received = scratch_for(values, values.numel());
  for (int distance = 1; distance < size; distance *= 2) {
    if (place % (2 * distance) != 0)
      return send(ranks, values, members[static_cast<std::size_t>(place - distance)]);
    if (place + distance >= size) continue;
    receive(ranks, received, members[static_cast<std::size_t>(place + distance)]);
    values.add_(received);
  }
}

/// The first member's values go to all along that tree.
void tree_broadcast(torch::Tensor& values, const Members& members, Ranks& ranks) {
  const auto size = static_cast<int>(members.size());
  const int place = place_of(members, ranks.rank());
  int distance = 1;
  while (distance < size) distance *= 2;
  for (distance /= 2; distance >= 1; distance /= 2) {
    if (place % (2 * distance) == distance)
      receive(ranks, values, members[static_cast<std::size_t>(place - distance)]);
    else if (place % (2 * distance) == 0 && place + distance < size)
      send(ranks, values, members[static_cast<std::size_t>(place + distance)]);
  }
}

void tree(torch::Tensor& values, const Nodes&, Ranks& ranks) {
  const Members all = all_of(ranks);
  tree_reduce(values, all, ranks);
  tree_broadcast(values, all, ranks);
}

/// Chunk i moves along the chain while chunk i + 1 follows it: each rank receives a chunk of the
/// sums before it, adds its own values, and sends it on, while the next chunk arrives.
void pipelined(torch::Tensor& values, const Nodes&, Ranks& ranks) {
  const std::int64_t chunks = pipeline_chunks(values.numel());
  const int rank = ranks.rank();
  const int last = ranks.size() - 1;
  const torch::Tensor scratch = scratch_for(values, values.numel());
  std::vector<Step> steps;
  for (std::int64_t i = 0; i <= chunks; ++i) {  // Towards the last rank.
    Step& step = steps.emplace_back();
    if (rank < last && i > 0)
      step.sends.push_back({.rank = rank + 1, .tensor = part_of(values, i - 1, chunks)});
    if (rank == 0 || i == chunks) continue;
    const torch::Tensor before = part_of(scratch, i, chunks);
    step.receives.push_back({.rank = rank - 1, .tensor = before});
    step.received = [before, sum = part_of(values, i, chunks)](std::size_t) { sum.add_(before); };
  }
  for (std::int64_t i = 0; i <= chunks; ++i) {  // And back.
    Step& step = steps.emplace_back();
    if (rank > 0 && i > 0)
      step.sends.push_back({.rank = rank - 1, .tensor = part_of(values, i - 1, chunks)});
    if (rank < last && i < chunks)
      step.receives.push_back({.rank = rank + 1, .tensor = part_of(values, i, chunks)});
  }
  ranks.exchange(steps);
}

/// A mean of fp32 values times W would not be their sum in all bits, so this adds up itself.
void alltoall(torch::Tensor& values, const Nodes&, Ranks& ranks) {
  const std::int64_t size = ranks.size();
  const torch::Tensor own = part_of(values, ranks.rank(), size);
  const torch::Tensor parts = scratch_for(values, size * own.numel()).view({size, own.numel()});
  std::vector<Step> steps(2);
  for (int rank = 0; rank < size; ++rank) {
    if (rank == ranks.rank()) continue;
    const torch::Tensor its = part_of(values, rank, size);
    steps[0].sends.push_back({.rank = rank, .tensor = its});
    steps[0].receives.push_back({.rank = rank, .tensor = parts[rank]});
    steps[1].sends.push_back({.rank = rank, .tensor = own});
    steps[1].receives.push_back({.rank = rank, .tensor = its});
  }
  steps[0].received = [&](std::size_t i) {
    if (i + 1 < steps[0].receives.size()) return;
    parts[ranks.rank()].copy_(own);
    own.copy_(parts[0]);
    for (std::int64_t rank = 1; rank < size; ++rank) own.add_(parts[rank]);
  };
  ranks.exchange(steps);
}

void hierarchical(torch::Tensor& values, const Nodes& nodes, Ranks& ranks) {
  sum_to_leader(values, nodes, ranks);
  const Members leaders = leaders_of(nodes);
  if (std::ranges::count(leaders, ranks.rank()) > 0) ring_of(values, leaders, ranks);
  broadcast_from_leader(values, nodes, ranks);
}

/// Ranks at the same place of their nodes sum the same part over the nodes. Nodes of different
/// sizes have no such places, and sum as hierarchical does.
void hybrid(torch::Tensor& values, const Nodes& nodes, Ranks& ranks) {
  if (!nodes.is_even()) return hierarchical(values, nodes, ranks);
  const Members node = nodes.ranks_of(nodes.node.at(static_cast<std::size_t>(ranks.rank())));
  const Ring inside(node, ranks);
  Members peers;
  for (int number = 0; number < nodes.count(); ++number)
    peers.push_back(nodes.ranks_of(number).at(static_cast<std::size_t>(inside.place)));
  std::vector<Step> scatter;
  add_reduce_scatter(scatter, values, inside);
  ranks.exchange(scatter);
  torch::Tensor part = part_of(values, inside.place, inside.size);
  ring_of(part, peers, ranks);
  std::vector<Step> gather;
  add_all_gather(gather, values, inside);
  ranks.exchange(gather);
}

/// How each topology of the table sums. The ranks are several, and `values` is not empty.
struct SumOf {
  std::string_view topology;
  void (*sum)(torch::Tensor& values, const Nodes& nodes, Ranks& ranks);
};
constexpr SumOf sums_of_topologies[] = {
    {"backend", backend},     {"ring", ring},         {"tree", tree},
    {"pipelined", pipelined}, {"alltoall", alltoall}, {"hierarchical", hierarchical},
    {"hybrid", hybrid},
};

}  // namespace

void sum_to_leader(torch::Tensor& values, const Nodes& nodes, Ranks& ranks) {
  tree_reduce(values, node_of(nodes, ranks), ranks);
}

void broadcast_from_leader(torch::Tensor& values, const Nodes& nodes, Ranks& ranks) {
  tree_broadcast(values, node_of(nodes, ranks), ranks);
}

Nodes find_nodes(std::string_view host, Ranks& ranks) {
  torch::Tensor own = torch::zeros({static_cast<std::int64_t>(host_bytes)}, torch::kUInt8);
  std::memcpy(own.data_ptr(), host.data(), std::min(host.size(), host_bytes));
  torch::Tensor all = torch::empty({ranks.size(), static_cast<std::int64_t>(host_bytes)},
                                   own.options().device(ranks.device()));
  ranks.all_gather(all, own.to(ranks.device()));
  all = all.cpu();
  Nodes nodes;
  std::map<std::string, int> numbers;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const auto* bytes = static_cast<const char*>(all[rank].const_data_ptr());
    const auto next = static_cast<int>(numbers.size());
    nodes.node.push_back(numbers.emplace(std::string(bytes, host_bytes), next).first->second);
  }
  return nodes;
}

void sum_by(const Topology& topology, torch::Tensor& values, const Nodes& nodes, Ranks& ranks) {
  FL_ASSERT(values.is_contiguous() && values.dim() == 1);
  if (ranks.size() == 1 || values.numel() == 0) return;
  const auto* const sum = std::ranges::find(sums_of_topologies, topology.name, &SumOf::topology);
  FL_ASSERT(sum != std::end(sums_of_topologies));
  sum->sum(values, nodes, ranks);
}

}  // namespace fl::site
