// SPDX-License-Identifier: Apache-2.0
// The end of a round: makes the next version of its accepted updates. The engine does so when a
// round closes, and a replay does the same again (replay.hpp). On the engine's strand.
#pragma once

#include "server/round/mean_sample.hpp"
#include "server/round/round_sums.hpp"
#include "server/round/update_intake.hpp"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace fl::server {

class NextVersion {
 public:
  struct Parts {
    StoreThread& store;
    Offload& compute;
    const RunPlan& plan;
    const DeltaReferences& references;
    const Versions& versions;
    const Tasks& tasks;
    const PastRounds& past;
  };
  explicit NextVersion(const Parts& parts)
      : parts_(parts), sample_(parts.plan.layout, parts.plan.run_layout.parameter_elements) {}

  /// Opens what reads the mean of the closed round's updates. Called on a worker.
  using OpenMean = std::function<Result<ReadValues>()>;
  /// Writes the version that the closed round's mean makes into the folder `to`, durably. If `to`
  /// is not the versions' own folder (a replay), the mean update is written beside the version
  /// (open_kept_mean()), and nothing of other versions is removed. While the disk is full it waits.
  /// Errors: those of `open_mean`, of what it returns, and of make_next_version().
  Awaitable<Result<CheckpointRecord>> make(std::filesystem::path to, OpenMean open_mean);
  /// The steps of "lanes" for updates trained from that version, as CheckpointRecord has them. They
  /// follow from the closed round's accepted updates alone. Errors: those of reading the spool.
  Awaitable<Result<std::string>> lane_steps(UpdateIntake& intake) const;
  /// A sample of the mean of which make() has made the version.
  [[nodiscard]] const MeanSample& sample() const { return sample_; }

 private:
  Parts parts_;
  MeanSample sample_;
};

}  // namespace fl::server
