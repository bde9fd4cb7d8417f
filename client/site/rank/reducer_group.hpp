// SPDX-License-Identifier: Apache-2.0
// The process group of c10d's Reducer. Beside its hook for gradients the Reducer has one collective
// of its own: a sum that tells which parameters were used on any rank. It starts that one itself,
// on the thread of the backward pass, while gradients are under way. Here it is queued behind them
// like everything else, so that all ranks make the same calls in the same order.
#pragma once

#include "client/site/rank/conductor.hpp"
#include "client/site/rank/step_times.hpp"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace fl::site {

/// For the Reducer alone: allreduce() is its only collective. `conductor` and `times` must outlive
/// the group, which must outlive what is queued. If a sum fails, waiting for it throws the
/// RankFailure.
[[nodiscard]] Ranks::Group make_reducer_group(int rank, int size, Conductor& conductor,
                                              StepTimes& times);

}  // namespace fl::site
