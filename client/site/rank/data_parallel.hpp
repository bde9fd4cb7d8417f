// SPDX-License-Identifier: Apache-2.0
// DataParallel: ranks have all parameters of their layers, and take a part of every batch.
// Gradients are reduced in buckets, from the last layers to the first, while the backward pass
// still computes those before: c10d's Reducer, as in PyTorch's DistributedDataParallel (Li et al.,
// "PyTorch Distributed", VLDB 2020, section 3).
#pragma once

#include "client/site/rank/gradient_hook.hpp"
#include "client/site/rank/grouped_parallel.hpp"
#include "client/site/rank/ranks.hpp"
#include "client/site/rank/step_times.hpp"
#include "shared/base/error.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <utility>
#include <vector>

namespace fl::site {

/// How ranks treat a parameter that gets no gradient in a step (--unused-parameters). A rank
/// without a gradient counts with 0 in the mean.
enum class UnusedParameters {
  refuse,        // It is an error.
  find,          // Each step looks for such parameters in its graph, and sums what ranks found.
  static_graph,  // Each rank's first step finds them; all steps have the same ones.
};
/// "refuse", "find" or "static". Errors: invalid_input.
[[nodiscard]] Result<UnusedParameters> parse_unused_parameters(std::string_view text);

/// Used by the thread that trains.
class DataParallel final : public GroupedParallel {
 public:
  /// `on_progress` is called for each batch and collective, on any thread. `steps_parts`: each rank
  /// steps a part of the parameters, and has the optimizer's moments of that part only (ZeRO stage
  /// 1: Rajbhandari et al., "ZeRO", SC 2020, section 5.1), though it gets the sums of all; for
  /// hooks and topologies that need whole gradients (ShardedParallel has the others).
  explicit DataParallel(
      std::function<void()> on_progress = [] {}, bool steps_parts = false,
      const PassDivision& division = {})
      : GroupedParallel(std::move(on_progress), division), steps_parts_(steps_parts) {}
  ~DataParallel() override { DataParallel::leave(); }

  [[nodiscard]] Result<void> enter_group(std::unique_ptr<Ranks> ranks, const GroupOptions& group,
                                         std::size_t model_bytes,
                                         MeasuredChoices& choices) override;
  /// Enters a group without measurements: `hook` reduces the gradients in pieces of `bucket_bytes`.
  /// is_local: HookRow::is_local of the hook. Throws RankFailure.
  void enter(std::unique_ptr<Ranks> ranks, std::unique_ptr<GradientHook> hook,
             std::size_t bucket_bytes, bool is_local = false,
             UnusedParameters unused = UnusedParameters::refuse);
  void leave() override;
  [[nodiscard]] Result<void> check(const TrainSettings& settings) const override;
  [[nodiscard]] HookState save() const override { return hook_->save(); }
  void load(const HookState& state) override { hook_->load(state); }
  [[nodiscard]] std::vector<Piece> read_by(std::int64_t rank) const override;
  [[nodiscard]] std::vector<Piece> written_by(std::int64_t rank) const override;

  [[nodiscard]] std::unique_ptr<HeldParameters> hold(const Module& module, const Layout& layout,
                                                     torch::Device device, Units& units) override;
  [[nodiscard]] bool passes_are_joint() const override { return false; }
  void before_forward(const std::vector<torch::Tensor>& parameters, bool is_last) override;
  void backward(const torch::Tensor& loss, bool is_last) override;
  void backward_stage(const std::vector<std::size_t>& units,
                      const std::function<void()>& work) override;
  void after_step(const std::vector<torch::Tensor>& parameters, bool is_last) override;
  bool on_any(bool here) override {
    const bool may_differ = is_local_ || parts().layers().is_divided();
    return may_differ ? ranks().sum(std::int64_t{here}) > 0 : here;
  }

 private:
  class Held;
  void take_hook(std::unique_ptr<GradientHook> hook, std::size_t bucket_bytes, bool is_local,
                 UnusedParameters unused);
  [[nodiscard]] std::int64_t elements_of(std::int64_t member) const;
  [[nodiscard]] Piece stepped_by(std::int64_t member) const;
  void make_reducer(const std::vector<torch::Tensor>& parameters);
  void run_backward(const torch::Tensor& loss, bool is_last);
  void check_buckets() const;
  void take_unused();

  const bool steps_parts_;
  torch::Tensor held_;  // All weights of its layers, fp32; undefined before hold().
  std::unique_ptr<GradientHook> hook_;
  std::shared_ptr<c10d::Reducer> reducer_;  // Made with the group's first step.
  std::shared_ptr<c10d::Logger> logger_;    // The Reducer calls it while it looks for parameters.
  std::vector<torch::Tensor> parameters_;   // The Reducer has the same ones.
  std::size_t buckets_ = 0;                 // How many the Reducer has.
  std::vector<std::shared_ptr<const Bucket>> reduced_;  // The step's buckets.
  std::size_t bucket_bytes_ = 0;
  bool is_local_ = false;
  bool returns_step_ = false;  // HookRow::returns_step of the hook.
  UnusedParameters unused_ = UnusedParameters::refuse;
  bool has_stepped_ = false;  // The Reducer has had a step.
};

}  // namespace fl::site
