// SPDX-License-Identifier: Apache-2.0
// Takes updates in that the server can read: each is decoded into the sums at once, its values must
// be finite, and its norm is judged by the others'. On the engine's strand.
#pragma once

#include "server/round/norm_judge.hpp"
#include "server/round/round_sums.hpp"
#include "server/round/update_intake.hpp"

namespace fl::server {

class DecodedIntake final : public UpdateIntake {
 public:
  struct Parts {
    RunControl& control;
    Offload& compute;
    DeltaReferences& references;
    Tasks& tasks;
    RoundSums& sums;
    PastRounds& past;
  };
  explicit DecodedIntake(const Parts& parts)
      : parts_(parts), norms_(parts.control, parts.tasks, parts.past) {}

  Awaitable<Result<void>> open_round() override;
  Awaitable<Result<void>> rebuild() override;
  [[nodiscard]] Result<void> check(const wire::UploadBegin& begin, const Task& task) const override;
  /// Adds the update to the sums, and waits until its norm is judged. Then it counts, or it is
  /// taken back.
  Awaitable<Result<Taken>> take(Task& task, TaskRecord& record, const UploadGrant& grant) override;
  [[nodiscard]] Result<void> forget(const TaskRecord& refused, const Error& error) override;
  Awaitable<Result<void>> settle() override;
  [[nodiscard]] Result<ReadValues> mean() const override { return parts_.sums.mean(); }
  Awaitable<Result<std::vector<TaskCosine>>> cosines(const MeanSample& sample) override;
  Awaitable<Result<std::vector<codec::LaneTally>>> lane_tallies(codec::LaneSteps steps) override;
  void release() override { parts_.sums.release(); }

 private:
  Parts parts_;
  NormJudge norms_;
};

}  // namespace fl::server
