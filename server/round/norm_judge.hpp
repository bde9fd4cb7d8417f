// SPDX-License-Identifier: Apache-2.0
// Judges the norms of the open round's updates (norm_limit.hpp), and lets an update that looks too
// large wait until its round closes. On the engine's strand.
#pragma once

#include "server/round/run_control.hpp"
#include "server/round/tasks.hpp"

namespace fl::server {

class NormJudge {
 public:
  NormJudge(RunControl& control, Tasks& tasks, PastRounds& past)
      : control_(control), tasks_(tasks), past_(past) {}

  /// Returns when it is clear whether an update with this norm counts. The update is in the sums;
  /// the caller holds a DecidingGuard of its task. Errors: invalid_input for an update that is too
  /// large; cancelled when the server goes down.
  Awaitable<Result<void>> judge(Task& task, double norm);

 private:
  [[nodiscard]] static JudgedNorm judged(OpenRound& round, double norm);
  RoundNorms& norms_of(OpenRound& round);

  RunControl& control_;
  Tasks& tasks_;
  PastRounds& past_;
};

}  // namespace fl::server
