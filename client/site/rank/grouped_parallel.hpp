// SPDX-License-Identifier: Apache-2.0
// GroupedParallel: what all kinds of Parallel do with their ranks, which lie in a grid: those that
// follow each other have layers together (tp), such groups the texts (cp), and groups of these take
// the parts of a batch (dp); as many ranks again have each of the other stages of a pipeline (pp).
// Those of dp and cp may have some of the experts each (ep).
#pragma once

#include "client/site/rank/conductor.hpp"
#include "client/site/rank/expert_ranks.hpp"
#include "client/site/rank/grid_parts.hpp"
#include "client/site/rank/parallel.hpp"
#include "client/site/rank/pass_ranks.hpp"
#include "client/site/rank/pipeline_ranks.hpp"
#include "client/site/rank/ranks.hpp"
#include "client/site/rank/step_times.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace fl::site {

/// Used by the thread that trains. A class that derives from it calls leave() in its destructor,
/// before what the conductor's work refers to is gone.
class GroupedParallel : public Parallel {
 public:
  /// `on_progress` is called for each batch and collective, on any thread.
  GroupedParallel(std::function<void()> on_progress, const PassDivision& division)
      : on_progress_(std::move(on_progress)),
        parts_(division),
        tensor_ranks_(division.layers),
        context_ranks_(division.texts),
        pipeline_ranks_(division.stages),
        expert_ranks_(division.experts) {}
  GroupedParallel(const GroupedParallel&) = delete;
  GroupedParallel& operator=(const GroupedParallel&) = delete;

  void leave() override;
  [[nodiscard]] bool has_group() const override { return ranks_ != nullptr; }
  [[nodiscard]] Ranks& ranks() override { return *ranks_; }
  [[nodiscard]] std::uint64_t gradient_bytes() const override {
    return gradient_ranks_->bytes_sent() + (replicas_ ? replicas_->bytes_sent() : 0);
  }
  [[nodiscard]] StepTimes& times() override { return times_; }

  [[nodiscard]] std::int64_t rank() const override {
    return gradient_ranks_->rank() / context_ranks_.division().ranks;
  }
  [[nodiscard]] std::int64_t size() const override {
    return gradient_ranks_->size() / context_ranks_.division().ranks;
  }
  [[nodiscard]] std::int64_t member() const override { return ranks_->rank(); }
  [[nodiscard]] std::int64_t members() const override { return ranks_->size(); }
  [[nodiscard]] PassGroups groups() override {
    return {.tensor = tensor_ranks_.is_divided() ? &tensor_ranks_ : nullptr,
            .context = context_ranks_.is_divided() ? &context_ranks_ : nullptr,
            .pipeline = pipeline_ranks_.is_divided() ? &pipeline_ranks_ : nullptr,
            .experts = expert_ranks_.is_divided() ? &expert_ranks_ : nullptr};
  }
  void observe_waiting(std::function<void(bool)> on_waiting) override {
    pipeline_ranks_.observe_waiting(std::move(on_waiting));
  }
  void advance() override { on_progress_(); }
  /// Reduces what the passes have left in the parameters' gradients, by a backward pass that adds
  /// nothing.
  void reduce_stages(const std::vector<torch::Tensor>& parameters) override;
  void broadcast(torch::Tensor& values) override;
  void sum(torch::Tensor& values) override;
  void sum_of_all(torch::Tensor& values) override;

 protected:
  /// From now on these are the ranks, a multiple of those that take a pass together. Throws
  /// RankFailure.
  void enter_ranks(std::unique_ptr<Ranks> ranks);
  /// Waits for the work that the conductor has begun, and ends it; leave() does, too.
  void end_conductor() { conductor_.reset(); }
  /// The conductor of the gradients, which are added up over sharers().
  [[nodiscard]] Conductor& conductor() { return *conductor_; }
  /// The ranks of sharers(), for the conductor's thread.
  [[nodiscard]] Ranks& gradient_ranks() const { return *gradient_ranks_; }
  /// The ranks that have the same experts, for that thread: these, or some of them.
  [[nodiscard]] Ranks& replicas() const { return replicas_ ? *replicas_ : *gradient_ranks_; }
  /// The ranks that have the same part of the layers but for experts, and other parts of a batch or
  /// of its texts, for the thread that trains.
  [[nodiscard]] Ranks& sharers() const { return own_sharers_ ? *own_sharers_ : *ranks_; }
  /// The parts of the model that each rank has. A class that derives from this one tells it the
  /// model in hold().
  [[nodiscard]] GridParts& parts() { return parts_; }
  [[nodiscard]] const GridParts& parts() const { return parts_; }

 private:
  const std::function<void()> on_progress_;
  GridParts parts_;
  StepTimes times_;
  // Each of these members uses those before it. Collectives of one group must start in one thread,
  // so the gradients, which the conductor's thread sends, have a group of their own.
  std::unique_ptr<Ranks> ranks_;        // All, for the thread that trains.
  std::unique_ptr<Ranks> own_sharers_;  // Null: all ranks have the same layers.
  TensorRanks tensor_ranks_;
  ContextRanks context_ranks_;
  PipelineRanks pipeline_ranks_;
  ExpertRanks expert_ranks_;
  std::unique_ptr<Ranks> gradient_ranks_;  // For the conductor's thread.
  std::unique_ptr<Ranks> replicas_;        // For that, too; null: they are the same ranks.
  std::optional<Conductor> conductor_;
};

}  // namespace fl::site
