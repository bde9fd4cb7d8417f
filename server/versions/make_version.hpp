// SPDX-License-Identifier: Apache-2.0
// Makes the next version of the model from a round's mean update, block by block: the whole model
// is never in memory, and the step only with a lossy downlink codec. The strategy
// (shared/algorithm/strategy.hpp) gets the weighted mean of the updates, sum(n_k s_k d_k) /
// sum(n_k), where s_k is 1 unless update k is stale (round_mode.hpp), or what a robust rule puts in
// its place (server/sums/aggregate_rule.hpp). It turns the mean into the step that is added to the
// model's parameters. The model's statistics (layout.hpp) move by the mean itself. The strategy's
// state lies beside the checkpoints, in one file for each version: vector after vector, each with
// one value for each parameter.
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
#include "shared/params/read_values.hpp"

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fl::server {

struct StepJob {
  Files& files;
  const std::filesystem::path& folder;  // The folder with the base and the files beside it.
  const std::filesystem::path&
      to;  // The folder for the new files: the same one, except in a replay.
  const RunLayout& layout;
  const ModelVersion& base;
  /// The mean update, or what a robust rule makes in its place. It is read from the front to the
  /// end, each element once.
  const ReadValues& mean;
  bool keeps_mean;  // Keeps the mean beside the checkpoint, because the next version or a replay
                    // needs it.
  const Strategy& strategy;
  RoundFacts round;
  const codec::Codec& downlink;
  std::uint64_t seed;
  std::vector<std::pair<std::string, std::string>> facts;
  bool drops_state;  // Removes the files beside versions before the base, which are not needed any
                     // more.
};

/// Writes version base + 1 durably and returns its record. Doing it again makes the same files. If
/// a value overflows fp32, the error is invalid_input and names the tensor and the index.
[[nodiscard]] Result<CheckpointRecord> make_next_version(const StepJob& job);

/// The names of the files that may lie beside a version for the next step: the carry, the
/// strategy's state, the mean update.
[[nodiscard]] std::array<std::string, 3> state_names(Version version);
/// The version in such a name; none for any other name.
[[nodiscard]] std::optional<Version> version_of_state(std::string_view name);

/// The mean update that made `version`, as fp32 values; null if it was not kept. Errors: the
/// file's.
[[nodiscard]] Result<std::unique_ptr<File>> open_kept_mean(Files& files,
                                                           const std::filesystem::path& folder,
                                                           Version version);

}  // namespace fl::server
