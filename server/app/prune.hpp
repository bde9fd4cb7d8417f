// SPDX-License-Identifier: Apache-2.0
// Removes runs that are over: their rows in the history, their models and their kept updates. Never
// the newest run, nor one that is not over; the audit and what belongs to no run stay. It works
// beside a running server. Blocking.
#pragma once

#include "server/history/store.hpp"
#include "shared/base/io/file.hpp"

#include <filesystem>
#include <optional>
#include <vector>

namespace fl::server {

struct PruneRule {
  std::uint64_t keep_runs = 1;         // The number of newest runs that stay, whatever their age.
  std::optional<double> older_than_s;  // Removes only runs that ended at least this long ago.
};

struct PrunedRun {
  EndedRun run;
  std::size_t files = 0;
  std::uint64_t bytes = 0;  // Bytes of the run's files.
};

/// The runs that the rule removes at this time, oldest first, with the bytes of their files.
[[nodiscard]] Result<std::vector<PrunedRun>> runs_to_prune(Files& files, Store& store,
                                                           const std::filesystem::path& state,
                                                           const PruneRule& rule, double now);

/// Removes these runs. Files go first: if this is cut off, the history still names what is left,
/// and the next prune goes on.
[[nodiscard]] Result<void> prune_runs(Files& files, Store& store,
                                      const std::filesystem::path& state,
                                      const std::vector<PrunedRun>& runs);

}  // namespace fl::server
