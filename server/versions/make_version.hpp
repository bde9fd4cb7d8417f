// SPDX-License-Identifier: Apache-2.0
// Makes the next version of the model from the sums of a round, block by block: the whole model is
// never in memory. The strategy (shared/algorithm/strategy.hpp) gets the weighted mean of the
// updates, sum(n_k s_k d_k) / sum(n_k), where s_k is 1 unless update k is stale (round_mode.hpp).
// It turns the mean into the step that is added to the model's parameters. The model's statistics
// (layout.hpp) move by the mean itself. The strategy's state lies beside the checkpoints, in one
// file for each version: vector after vector, each with one value for each parameter.
//
// With a lossy downlink codec the step itself is coded, and the new version is defined by what
// decodes: w' = w + decode(encode(step + carry)). So every client that adds the coded steps has w'
// bit for bit. What the codec loses is carried into the next step (error feedback on the downlink,
// as in DoubleSqueeze, Tang 2019, section 3). The carry lies beside the checkpoints too, in one
// file for each version.
//
// Blocking; a worker thread.
#pragma once

#include "server/versions/checkpoints.hpp"
#include "shared/algorithm/strategy.hpp"
#include "shared/codec/encode/codec.hpp"
#include "shared/codec/sums/accumulator.hpp"

#include <string>
#include <utility>
#include <vector>

namespace fl {

struct StepJob {
  Files& files;
  const std::filesystem::path& folder;
  const RunLayout& layout;
  const ModelVersion& base;
  const Accumulator& sums;  // Their total weight is above 0.
  double divisor;           // Total weight before any discount: sums / divisor is the mean.
  const Strategy& strategy;
  RoundFacts round;
  const Codec& downlink;
  std::uint64_t seed;
  std::vector<std::pair<std::string, std::string>> facts;
};

/// Writes version base + 1 durably and returns its record. Doing it again makes the same files. If
/// a value overflows fp32, the error is invalid_input and names the tensor and the index.
[[nodiscard]] Result<CheckpointRecord> make_next_version(const StepJob& job);

}  // namespace fl
