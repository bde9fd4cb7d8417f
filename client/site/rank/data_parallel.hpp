// SPDX-License-Identifier: Apache-2.0
// DataParallel: the ranks have all parameters, and each takes a part of every batch. Gradients are
// reduced in buckets, from the last layers to the first, while the backward pass still computes
// those before: c10d's Reducer, as in PyTorch's DistributedDataParallel (Li et al., "PyTorch
// Distributed", VLDB 2020, section 3).
#pragma once

#include "client/site/rank/conductor.hpp"
#include "client/site/rank/gradient_hook.hpp"
#include "client/site/rank/parallel.hpp"
#include "client/site/rank/ranks.hpp"
#include "client/site/rank/step_times.hpp"
#include "shared/base/error.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
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
class DataParallel final : public Parallel {
 public:
  /// `on_progress` is called for each batch and collective, on any thread.
  explicit DataParallel(std::function<void()> on_progress = [] {})
      : on_progress_(std::move(on_progress)) {}
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;
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
  [[nodiscard]] bool has_group() const override { return ranks_ != nullptr; }
  [[nodiscard]] Ranks& ranks() override { return *ranks_; }
  [[nodiscard]] Result<void> check(const TrainSettings& settings) const override;
  [[nodiscard]] HookState save() const override { return hook_->save(); }
  void load(const HookState& state) override { hook_->load(state); }
  [[nodiscard]] std::uint64_t gradient_bytes() const override {
    return gradient_ranks_->bytes_sent();
  }
  [[nodiscard]] StepTimes& times() override { return times_; }

  [[nodiscard]] std::int64_t rank() const override { return ranks_->rank(); }
  [[nodiscard]] std::int64_t size() const override { return ranks_->size(); }
  void before_forward(const std::vector<torch::Tensor>& parameters, bool is_last) override;
  void advance() override { on_progress_(); }
  void backward(const torch::Tensor& loss, bool is_last) override;
  void after_step(std::vector<torch::Tensor>& parameters, bool is_last) override;
  void broadcast(torch::Tensor& values) override;
  void sum(torch::Tensor& values) override;
  bool on_any(bool here) override { return is_local_ ? ranks_->sum(std::int64_t{here}) > 0 : here; }

 private:
  void make_reducer(const std::vector<torch::Tensor>& parameters);
  void run_backward(const torch::Tensor& loss, bool is_last);
  void check_buckets() const;
  void take_unused();

  const std::function<void()> on_progress_;
  StepTimes times_;
  // Each of these members uses those before it. Collectives of one group must start in one thread,
  // so the gradients, which the conductor's thread sends, have a group of their own.
  std::unique_ptr<Ranks> ranks_;           // For the thread that trains.
  std::unique_ptr<Ranks> gradient_ranks_;  // For the conductor's thread.
  std::unique_ptr<GradientHook> hook_;
  std::optional<Conductor> conductor_;
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
