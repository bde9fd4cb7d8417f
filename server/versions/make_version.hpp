// From the sums of a round to the next version of the model, block by block: the model is never in
// memory as a whole. The strategy (shared/algorithm/strategy.hpp) makes of the weighted mean of the
// updates, sum(n_k s_k d_k) / sum(n_k), s_k being 1 unless it is stale (round_mode.hpp), what is
// added to the model's parameters; its statistics (layout.hpp) move by the mean. What the strategy
// keeps for that lies beside the checkpoints, one file for each version: vector after vector, P
// values each.
//
// With a lossy downlink codec the step itself is coded, and the new version is defined by what
// decodes: w' = w + decode(encode(step + carried)). So every client that adds the coded steps holds
// w' bit for bit; what the code lost is carried into the next step (error feedback on the downlink,
// as in DoubleSqueeze, Tang 2019, section 3). The carry lies beside the checkpoints, one file per
// version.
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
  const Accumulator& sums;  // With a total weight above 0.
  double divisor;           // What makes of them the mean: their weight, before any discount.
  const Strategy& strategy;
  RoundFacts round;
  const Codec& downlink;
  std::uint64_t seed;
  std::vector<std::pair<std::string, std::string>> facts;
};

/// Writes version base + 1 durably and returns its record. Repeating it gives the same files. A
/// value that overflows fp32 is invalid_input, naming the tensor and index.
[[nodiscard]] Result<CheckpointRecord> make_next_version(const StepJob& job);

}  // namespace fl
