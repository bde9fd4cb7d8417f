// SPDX-License-Identifier: Apache-2.0
// PipelineRanks: a PipelineGroup whose ranks talk over c10d. Each way between stages has a group of
// its own (PipelineWay).
#pragma once

#include "client/site/rank/pass_ranks.hpp"
#include "client/site/rank/ranks.hpp"
#include "client/site/rank/step_times.hpp"

#include <torch/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace fl::site {

/// The thread that trains.
class PipelineRanks final : public PassRanks<PipelineGroup> {
 public:
  explicit PipelineRanks(PipelineDivision division)
      : PassRanks(division), on_waiting_([](bool /*waits*/) {}) {}

  /// As PassRanks::enter(), with the groups of the ways. `times` notes what this rank waits.
  void enter(std::unique_ptr<Ranks> ranks, StepTimes& times);
  /// There is no group any more.
  void leave();
  /// From now on `on_waiting` is told when receive() begins to wait, and when that ends.
  void observe_waiting(std::function<void(bool)> on_waiting) {
    on_waiting_ = std::move(on_waiting);
  }

  void send(const StageValues& what, const torch::Tensor& values) override;
  void receive(const StageValues& what, torch::Tensor& values) override;
  void finish() override;
  void sum_of_ends(torch::Tensor& values) override;

 private:
  /// Values on their way, with the group by which they go.
  struct Sent {
    StageValues what;
    Ranks* ranks = nullptr;
    Ranks::Posted posted;
  };
  [[nodiscard]] Ranks& way_of(const StageValues& what) const;
  [[nodiscard]] int tag_of(const StageValues& what) const;
  void finish_values_of(const StageValues& gradient);

  std::array<std::unique_ptr<Ranks>, pipeline_ways> ways_;
  std::vector<Sent> sent_;  // Of one step.
  StepTimes* times_ = nullptr;
  std::function<void(bool)> on_waiting_;
};

}  // namespace fl::site
