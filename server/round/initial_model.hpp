// SPDX-License-Identifier: Apache-2.0
// Version 0 of the model: from a file of the user's, or made from the seed. No client has a part in
// its parameters, so none can begin a run with weights of its own. A model that scales values also
// gets their means and variances over the examples of all trainers that are here. On the engine's
// strand.
#pragma once

#include "server/round/evaluations.hpp"
#include "server/round/roster.hpp"
#include "shared/base/async/offload.hpp"
#include "shared/params/column_summary.hpp"

#include <span>
#include <utility>
#include <vector>

namespace fl::server {

class InitialModel {
 public:
  struct Parts {
    RunControl& control;
    Offload& compute;
    Files& files;
    Roster& roster;
    Versions& versions;
    Evaluations& evaluations;
  };
  InitialModel(const Parts& parts, WeightsFromSeed from_seed)
      : parts_(parts), from_seed_(std::move(from_seed)) {}

  /// Makes version 0, from the file that --initial-weights names or else from the seed, records and
  /// publishes it. Waits for room on the disk. Errors name the file. If an operator has removed the
  /// run meanwhile, the run ends, and there is no model.
  Awaitable<Result<void>> make();

 private:
  Awaitable<Result<void>> end_removed(Error error);
  [[nodiscard]] std::vector<ColumnSummary> summaries() const;
  [[nodiscard]] Result<CheckpointRecord> write(std::span<const ColumnSummary> summaries) const;
  [[nodiscard]] Result<std::vector<float>> values_of_file() const;
  [[nodiscard]] Result<std::vector<float>> values_of_seed(
      std::span<const ColumnSummary> summaries) const;

  Parts parts_;
  WeightsFromSeed from_seed_;
};

}  // namespace fl::server
