// SPDX-License-Identifier: Apache-2.0
// Makes a recorded round again: from the version that it began from, the updates that were kept of
// it and the settings that it was closed with (kept_round.hpp), with the parts that the engine
// closes a round with, on the updates as a restarted server finds them. The new version's digest
// must be the recorded one. Nothing in the state changes; a server may run beside it. Blocking.
#pragma once

#include "server/history/store.hpp"
#include "server/round/update_directions.hpp"
#include "server/run/settings.hpp"
#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"
#include "shared/params/layout.hpp"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace fl::server {

/// The model's tensors, if the settings are right.
[[nodiscard]] Result<Layout> checked_layout(const RunSettings& settings);

struct ReplaySource {
  Files& files;
  Store& store;
  RunRecord run;
  std::filesystem::path checkpoints;  // The run's checkpoints.
  std::filesystem::path kept;         // The run's kept updates.
  /// An empty folder for what the replay makes: a model, the mean update that it was made of, and
  /// the strategy's files beside it.
  std::filesystem::path scratch;
  std::function<Result<Layout>(const RunSettings&)> layout_of = checked_layout;
};

struct ReplayedRound {
  Round round = 0;
  /// The updates, in the order of their clients' names. They are compared with the replayed mean:
  /// with a robust rule, with what that rule has made.
  std::vector<UpdateDirection> updates;
  Digest recorded;
  Digest made;
  std::string closed_by;  // The software that has closed the round.
  /// The first value, or file, in which the replayed version differs from the recorded one; "":
  /// none does.
  std::string difference;
  [[nodiscard]] bool is_same() const { return difference.empty(); }
};

/// Errors: not_found for a round that does not exist, whose updates were not kept, or of which
/// something is missing; conflict, if it is open; corrupt, with the name of the file, if something
/// was changed; and those of writing into `scratch`.
[[nodiscard]] Result<ReplayedRound> replay_round(const ReplaySource& from, Round round);

}  // namespace fl::server
