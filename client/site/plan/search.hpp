// SPDX-License-Identifier: Apache-2.0
// Searches the ways to divide a training among a site's GPUs, by the formulas of formulas.hpp.
#pragma once

#include "client/site/plan/formulas.hpp"
#include "client/site/plan/inputs.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace fl::site {

/// How a training is divided. Ranks are numbered tensor parallelism first, then context, data and
/// pipeline parallelism, as Megatron-LM does it, so that a tensor-parallel group is inside a node.
struct Division {
  std::int64_t dp = 1;
  std::int64_t tp = 1;
  std::int64_t cp = 1;  // In a ring.
  std::int64_t ep = 1;  // Groups of the ranks of dp and cp, which follow each other.
  std::int64_t pp = 1;
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_back;
  std::int64_t chunks = 1;  // The stages of a rank.
  int zero = 0;             // 0: plain data parallelism; ZeRO-1, 2, 3.
  bool offload = false;
  std::int64_t micro_batch = 1;  // Sequences.
  Recompute recompute = Recompute::selective;

  /// "ZeRO-1 + TP", "DP", "ZeRO-2 + offload + PP".
  [[nodiscard]] std::string family() const;
  [[nodiscard]] PipelineDivision stages() const {
    return {.ranks = pp, .schedule = schedule, .chunks = chunks};
  }
  /// The ranks with the same layers, over which gradients are added up, and those with the same
  /// experts.
  [[nodiscard]] std::int64_t sharers() const { return dp * cp; }
  [[nodiscard]] std::int64_t replicas() const { return sharers() / ep; }
  /// The parameters that a GPU has: those but experts', and theirs.
  [[nodiscard]] double dense_of(const ModelShape& shape) const {
    return (shape.parameters - shape.of_experts()) / real(tp * pp);
  }
  [[nodiscard]] double experts_of(const ModelShape& shape) const {
    return shape.of_experts() / real(tp * pp * ep);
  }
};

struct Plan {
  Division division;
  std::int64_t microbatches = 1;

  // Bytes of one GPU.
  StateMemory state;
  double activation_bytes = 0;
  double working_bytes = 0;  // ZeRO-3's two gathered layers.
  double memory_bytes = 0;   // The sum.
  double host_bytes = 0;     // Of one node.

  // Bytes that one GPU sends in a step.
  double tensor_bytes = 0;
  double context_bytes = 0;
  double expert_bytes = 0;
  double pipeline_bytes = 0;
  DataParallelBytes data_bytes;     // For all parameters but those of experts.
  DataParallelBytes replica_bytes;  // For those of experts.
  [[nodiscard]] double data_sent() const {
    return data_bytes.gradients + data_bytes.weights + replica_bytes.gradients +
           replica_bytes.weights;
  }

  // Seconds of a step.
  double compute_s = 0;  // With recomputation, without the bubble.
  double bubble_s = 0;
  double tensor_s = 0;
  double context_s = 0;
  double expert_s = 0;
  double pipeline_s = 0;
  double gradients_s = 0;  // Reducing the gradients, hidden parts included.
  double weights_s = 0;    // Gathering the weights, hidden parts included.
  double exposed_s = 0;    // The part of these two that the computation does not hide.
  double host_s = 0;       // Offload: transfers, and Adam on the CPU.
  double step_s = 0;

  std::string misfit;  // Why it can't be used; "": it fits.
};

/// Sequences of so many tokens are worth dividing.
inline constexpr std::int64_t long_sequence = 16'384;

/// The ranks over which gradients are added up: on each node, and the nodes. `of_experts`: those of
/// experts.
struct GroupShape {
  std::int64_t local = 1;
  std::int64_t nodes = 1;
};
[[nodiscard]] GroupShape data_group(const SiteMachines& machines, const Division& division,
                                    bool of_experts = false);
/// The ranks of ep likewise.
[[nodiscard]] GroupShape expert_group(const SiteMachines& machines, const Division& division);

/// The part of the communication beside computation that is really hidden. Overlapping buckets
/// reached 0.45 to 0.89 on a link with a limited rate.
inline constexpr double overlap_efficiency = 0.8;

/// Seconds of a communication that are not hidden behind `window_s` of computation.
[[nodiscard]] double exposed_seconds(double communication_s, double window_s);
/// Seconds of the backward pass in which gradients are reduced, and of all computation that hides
/// the gathering of weights.
[[nodiscard]] double gradient_window(const Plan& plan);

/// The plan of one division. The division must be possible: dp tp cp pp = gpus, and so on.
[[nodiscard]] Plan make_plan(const ModelShape& shape, const SiteMachines& machines,
                             const PlanTraining& training, const Division& division);

/// The best plan of each family, the fastest first, and then those that do not fit, the one that
/// misses least first. A family that is not possible at all has a plan with nothing but `misfit`.
[[nodiscard]] std::vector<Plan> search_plans(const ModelShape& shape, const SiteMachines& machines,
                                             const PlanTraining& training);
/// The best of all plans that fit and of which `suits` says so, if there is one.
[[nodiscard]] std::optional<Plan> search_plan(const ModelShape& shape, const SiteMachines& machines,
                                              const PlanTraining& training,
                                              const std::function<bool(const Plan&)>& suits);

}  // namespace fl::site
