// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/expert_ranks.hpp"

#include "shared/base/error.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace fl::site {

namespace {

using Counts = std::vector<std::int64_t>;

/// to[r] rows go to rank r; those of all ranks come back, from[r] of rank r.
torch::Tensor send_rows(Ranks& ranks, const torch::Tensor& rows, const Counts& to,
                        const Counts& from) {
  std::vector<std::int64_t> shape = rows.sizes().vec();
  shape[0] = std::accumulate(from.begin(), from.end(), std::int64_t{0});
  torch::Tensor received = torch::empty(shape, rows.options());
  ranks.all_to_all(received, rows.contiguous(), from, to);
  return received;
}

}  // namespace

void ExpertRanks::enter(std::unique_ptr<Ranks> ranks, const Nodes& nodes) {
  if (division().way == ExpertWay::two_hops) {
    if (!nodes.is_even()) {
      log_info(
          "tokens go to their experts in one hop: the {} ranks that share these are not on "
          "several machines with as many on each, and more than one",
          ranks->size());
    } else {
      for (int node = 0; node < nodes.count(); ++node) machines_.push_back(nodes.ranks_of(node));
      const auto machine =
          static_cast<std::size_t>(nodes.node[static_cast<std::size_t>(ranks->rank())]);
      const std::vector<int>& here = machines_[machine];
      const auto number = std::ranges::find(here, ranks->rank()) - here.begin();
      std::vector<int> same;
      for (const auto& one : machines_) same.push_back(one[static_cast<std::size_t>(number)]);
      within_ = ranks->subgroup(here, fmt::format("machine {}", machine));
      across_ = ranks->subgroup(same, fmt::format("number {}", number));
    }
  }
  PassRanks::enter(std::move(ranks));
}

void ExpertRanks::leave() {
  across_.reset();
  within_.reset();
  machines_.clear();
  PassRanks::enter(nullptr);
}

torch::Tensor ExpertRanks::exchange_rows(const torch::Tensor& rows, const Counts& to,
                                         const Counts& from) {
  const torch::Tensor there = rows.to(ranks().device());
  const torch::Tensor received =
      within_ ? in_two_hops(there, to, from) : send_rows(ranks(), there, to, from);
  return received.to(rows.device());
}

/// The first hop brings to each rank what its machine has for the ranks with its number; the second
/// one takes it to these. Pieces of one rank's rows for another one stay together.
torch::Tensor ExpertRanks::in_two_hops(const torch::Tensor& rows, const Counts& to,
                                       const Counts& from) {
  const auto machines = static_cast<std::int64_t>(machines_.size());
  const auto numbers = static_cast<std::int64_t>(machines_.front().size());
  const auto rank_at = [this](std::int64_t machine, std::int64_t number) {
    return static_cast<std::size_t>(
        machines_[static_cast<std::size_t>(machine)][static_cast<std::size_t>(number)]);
  };
  const std::vector<torch::Tensor> by_rank = rows.split_with_sizes(to);
  std::vector<torch::Tensor> pieces;
  Counts counts;
  for (std::int64_t number = 0; number < numbers; ++number) {
    for (std::int64_t machine = 0; machine < machines; ++machine) {
      pieces.push_back(by_rank[rank_at(machine, number)]);
      counts.push_back(to[rank_at(machine, number)]);
    }
  }
  const torch::Tensor sent =
      torch::tensor(counts, torch::kInt64).view({numbers, machines}).to(rows.device());
  const Counts one_each(static_cast<std::size_t>(numbers), 1);
  const torch::Tensor came = send_rows(*within_, sent, one_each, one_each);
  const torch::Tensor first =
      send_rows(*within_, torch::cat(pieces), numbers_of(sent.sum(1)), numbers_of(came.sum(1)));

  const std::vector<torch::Tensor> by_number = first.split_with_sizes(numbers_of(came));
  pieces.clear();
  Counts expected;
  Counts order;
  for (std::int64_t machine = 0; machine < machines; ++machine) {
    std::int64_t count = 0;
    for (std::int64_t number = 0; number < numbers; ++number) {
      pieces.push_back(by_number[static_cast<std::size_t>(number * machines + machine)]);
      order.push_back(from[rank_at(machine, number)]);
      count += order.back();
    }
    expected.push_back(count);
  }
  const torch::Tensor second =
      send_rows(*across_, torch::cat(pieces), numbers_of(came.sum(0)), expected);

  const std::vector<torch::Tensor> by_place = second.split_with_sizes(order);
  pieces.assign(from.size(), {});
  for (std::int64_t machine = 0; machine < machines; ++machine)
    for (std::int64_t number = 0; number < numbers; ++number)
      pieces[rank_at(machine, number)] =
          by_place[static_cast<std::size_t>(machine * numbers + number)];
  return torch::cat(pieces);
}

}  // namespace fl::site
