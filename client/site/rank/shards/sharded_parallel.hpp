// SPDX-License-Identifier: Apache-2.0
// ShardedParallel: each rank has a part of each unit's parameters, of their gradients and of the
// optimizer's moments. A unit's parameters come together before its forward and its backward pass,
// the next unit's meanwhile; its gradients go to the ranks that have the parts while the backward
// pass goes on. All ranks make the same passes.
#pragma once

#include "client/site/rank/grouped_parallel.hpp"
#include "client/site/rank/shards/cut.hpp"

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace fl::site {

/// Used by the thread that trains.
class ShardedParallel final : public GroupedParallel {
 public:
  struct Options {
    /// Parameters are freed after each use, so that a rank has those of two units at most beside
    /// its parts (ZeRO stage 3); else they stay from step to step, and only gradients and moments
    /// are parts (stages 1 and 2).
    bool frees_parameters = true;
    /// Gradients stay on each rank until the last pass of a step, and go to the ranks that have the
    /// parts once a step (stage 1); else after each pass.
    bool keeps_gradients = false;
    /// The next unit's parameters come while a unit computes.
    bool prefetches = true;
  };
  ShardedParallel(std::function<void()> on_progress, Options options,
                  const PassDivision& division = {});
  ~ShardedParallel() override;

  [[nodiscard]] Result<void> enter_group(std::unique_ptr<Ranks> ranks, const GroupOptions& group,
                                         std::size_t model_bytes,
                                         MeasuredChoices& choices) override;
  /// Enters a group; gradients travel in this format. Throws RankFailure.
  void enter(std::unique_ptr<Ranks> ranks, torch::ScalarType exchange = torch::kFloat32);
  void leave() override;
  [[nodiscard]] Result<void> check(const TrainSettings& /*settings*/) const override { return {}; }
  [[nodiscard]] HookState save() const override { return {}; }
  void load(const HookState& /*state*/) override {}
  [[nodiscard]] std::vector<Piece> read_by(std::int64_t rank) const override;
  [[nodiscard]] std::vector<Piece> written_by(std::int64_t rank) const override;

  [[nodiscard]] std::unique_ptr<HeldParameters> hold(const Module& module, const Layout& layout,
                                                     torch::Device device, Units& units) override;
  [[nodiscard]] bool passes_are_joint() const override { return true; }
  void before_forward(const std::vector<torch::Tensor>& parameters, bool is_last) override;
  void backward(const torch::Tensor& loss, bool is_last) override;
  void backward_stage(const std::vector<std::size_t>& units,
                      const std::function<void()>& work) override;
  void reduce_stages(const std::vector<torch::Tensor>& parameters) override;
  void after_step(const std::vector<torch::Tensor>& parameters, bool is_last) override;
  bool on_any(bool here) override { return ranks().sum(std::int64_t{here}) > 0; }

 private:
  class Held;
  [[nodiscard]] std::vector<UnitCut> cuts_of(std::int64_t member) const;
  [[nodiscard]] std::vector<Piece> pieces_of_member(std::int64_t member) const;
  const Options options_;
  torch::ScalarType exchange_ = torch::kFloat32;
  /// The parameters of a unit, without those of experts that others have other ones of.
  struct UnitSize {
    std::int64_t dense = 0;
    std::int64_t experts = 0;
  };
  std::vector<UnitSize> sizes_;
  Held* held_ = nullptr;  // The trainer's; null before hold(), and after it has ended.
};

}  // namespace fl::site
