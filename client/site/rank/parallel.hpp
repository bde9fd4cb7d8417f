// SPDX-License-Identifier: Apache-2.0
// Parallel: how the ranks of a site share the work of a step, and what each of them keeps of
// parameters and gradients. The trainer knows the part of it that is StepSync; Rank enters groups
// with it. Each rank takes a part of each batch, or has it together with the ranks that have the
// other parts of the layers. With DataParallel it has all parameters of its layers; with
// ShardedParallel a part of them.
#pragma once

#include "client/learn/torch/held_parameters.hpp"
#include "client/learn/torch/step_sync.hpp"
#include "client/site/measured_choices.hpp"
#include "client/site/rank/gradient_hook.hpp"
#include "client/site/rank/ranks.hpp"
#include "client/site/rank/step_times.hpp"
#include "client/site/site_messages.hpp"
#include "shared/base/error.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fl::site {

/// The thread that trains. The calls of StepSync need a group.
class Parallel : public StepSync {
 public:
  /// From now on the steps are taken with these ranks, in the way that `group` says, for a model of
  /// `model_bytes` (0: not known yet). What is measured goes into `choices`, and what is there
  /// already is taken from it. A collective. Throws RankFailure. Errors: invalid_input, corrupt.
  [[nodiscard]] virtual Result<void> enter_group(std::unique_ptr<Ranks> ranks,
                                                 const GroupOptions& group, std::size_t model_bytes,
                                                 MeasuredChoices& choices) = 0;
  /// Ends the group, so that ranks that wait for this one notice. Nothing happens without a group.
  virtual void leave() = 0;
  [[nodiscard]] virtual bool has_group() const = 0;
  /// From now on `on_waiting` is told when this rank begins to wait for another one's work, of
  /// which the wait says nothing, and when that ends.
  virtual void observe_waiting(std::function<void(bool)> on_waiting) = 0;
  /// All ranks, for the thread that trains. Between two rounds only.
  [[nodiscard]] virtual Ranks& ranks() = 0;

  /// Whether ranks can train so in this group. Errors: invalid_input.
  [[nodiscard]] virtual Result<void> check(const TrainSettings& settings) const = 0;
  /// Copies what this rank keeps from step to step beside the parameters. Between two rounds only.
  [[nodiscard]] virtual HookState save() const = 0;
  /// Goes on with a saved state; begins anew with an empty one. Between two rounds only.
  virtual void load(const HookState& state) = 0;

  /// The stretches of the model's parameters that one of all ranks reads before its work, and those
  /// of which it writes the update. After hold().
  [[nodiscard]] virtual std::vector<Piece> read_by(std::int64_t rank) const = 0;
  [[nodiscard]] virtual std::vector<Piece> written_by(std::int64_t rank) const = 0;

  /// Bytes that this rank has sent for gradients and parameters in this group, by formula
  /// (Ranks::bytes_sent()).
  [[nodiscard]] virtual std::uint64_t gradient_bytes() const = 0;
  /// Notes where the time goes.
  [[nodiscard]] virtual StepTimes& times() = 0;
};

/// Makes the kind that goes with these settings. `on_progress` is called for each batch and
/// collective, on any thread. Errors: invalid_input, where the settings don't go together.
[[nodiscard]] Result<std::unique_ptr<Parallel>> make_parallel(const ParallelSettings& settings,
                                                              std::function<void()> on_progress);

}  // namespace fl::site
