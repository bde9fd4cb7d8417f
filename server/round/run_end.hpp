// SPDX-License-Identifier: Apache-2.0
// Whether a run is over: its rounds are recorded, or its goal was reached early. On the engine's
// strand.
#pragma once

#include "server/round/evaluations.hpp"
#include "server/round/tasks.hpp"
#include "server/versions/versions.hpp"

namespace fl::server {

class RunEnd {
 public:
  RunEnd(const RunPlan& plan, const Tasks& tasks, const Versions& versions,
         const Evaluations& evaluations)
      : plan_(plan), tasks_(tasks), versions_(versions), evaluations_(evaluations) {}

  /// Whether no other round will open.
  [[nodiscard]] bool is_over() const {
    if (was_over()) return true;
    if (tasks_.has_round() && !leaves_round_) return false;
    if (!evaluations_.early_end().empty()) return true;
    return !versions_.empty() && round_of(versions_.newest_number()) >= plan_.settings.rounds;
  }
  /// Says that the open round is not waited for: the run has an early end, and nobody works for the
  /// round.
  void leave_round() { leaves_round_ = true; }
  /// Whether the run was recorded as finished, or as given up, before this engine began.
  [[nodiscard]] bool was_over() const {
    return plan_.run.state == RunState::finished || plan_.run.state == RunState::stopped;
  }

 private:
  const RunPlan& plan_;
  const Tasks& tasks_;
  const Versions& versions_;
  const Evaluations& evaluations_;
  bool leaves_round_ = false;
};

}  // namespace fl::server
