// SPDX-License-Identifier: Apache-2.0
// ExpertRanks: an ExpertGroup whose ranks talk over c10d.
#pragma once

#include "client/site/rank/pass_ranks.hpp"
#include "client/site/rank/ranks.hpp"
#include "client/site/topologies/network.hpp"

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace fl::site {

/// The thread that trains, and that of a backward pass while it lasts.
class ExpertRanks final : public PassRanks<ExpertGroup> {
 public:
  using PassRanks<ExpertGroup>::PassRanks;

  /// As PassRanks::enter(), with the machines of these ranks. Rows go in one hop where these are
  /// not even, whatever the division says. A collective; throws RankFailure.
  void enter(std::unique_ptr<Ranks> ranks, const Nodes& nodes);
  /// There is no group any more.
  void leave();

  [[nodiscard]] torch::Tensor exchange_rows(const torch::Tensor& rows,
                                            const std::vector<std::int64_t>& to,
                                            const std::vector<std::int64_t>& from) override;

 private:
  [[nodiscard]] torch::Tensor in_two_hops(const torch::Tensor& rows,
                                          const std::vector<std::int64_t>& to,
                                          const std::vector<std::int64_t>& from);

  std::unique_ptr<Ranks> within_;  // Those of this rank's machine; null: rows go in one hop.
  std::unique_ptr<Ranks> across_;  // Those with its number on each machine.
  std::vector<std::vector<int>> machines_;  // The ranks of each.
};

}  // namespace fl::site
