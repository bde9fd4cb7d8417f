// SPDX-License-Identifier: Apache-2.0
// Version 0 of the model: from a file of the user's, or made from the seed. No client has a part in
// it, so none can begin a run with weights of its own. On the engine's strand.
#pragma once

#include "server/round/evaluations.hpp"
#include "shared/base/async/offload.hpp"

#include <utility>
#include <vector>

namespace fl {

class InitialModel {
 public:
  struct Parts {
    RunControl& control;
    StoreThread& store;
    Offload& compute;
    const RunPlan& plan;
    Files& files;
    Versions& versions;
    Evaluations& evaluations;
  };
  InitialModel(const Parts& parts, WeightsFromSeed from_seed)
      : parts_(parts), from_seed_(std::move(from_seed)) {}

  /// Makes version 0, from the file that --initial-weights names or else from the seed, records and
  /// publishes it. Waits for room on the disk. Errors name the file.
  Awaitable<Result<void>> make();

 private:
  [[nodiscard]] Result<CheckpointRecord> write() const;
  [[nodiscard]] Result<std::vector<float>> values_of_file() const;
  [[nodiscard]] Result<std::vector<float>> values_of_seed() const;

  Parts parts_;
  WeightsFromSeed from_seed_;
};

}  // namespace fl
