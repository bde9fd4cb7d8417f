// Which run a server works on: the oldest that is not over. Runs are rows of the history; a new one
// is queued by writing its row, from this process or from another beside it. Blocking (the store).
#pragma once

#include "server/app/command_line.hpp"
#include "server/history/store.hpp"

#include <filesystem>
#include <optional>

namespace fl {

struct ChosenRun {
  RunRecord record;
  RunSettings settings;
};

/// At a server's start: the run to go on with, or a new one. Settings that were given now replace
/// the stored ones for good, but for what a run can't change (`conflict`), and but for a queued
/// run, which has its own. --new-run ends all others (RunState::stopped). With --stay a finished
/// run is chosen rather than none: it ends at once, and the server waits.
[[nodiscard]] Result<ChosenRun> choose_run(Store& store, const ServerOptions& options);

/// The oldest run that is not over, if there is one.
[[nodiscard]] Result<std::optional<ChosenRun>> next_run(Store& store);

/// Another run, behind those that are not over. `conflict` if these are limits::runs_queued_max.
[[nodiscard]] Result<RunRecord> queue_run(Store& store, const ServerOptions& options);

/// Where a run's checkpoints lie: STATE/checkpoints for the first run of a state, and
/// STATE/checkpoints/run-N for run N after it.
[[nodiscard]] std::filesystem::path checkpoints_of(const std::filesystem::path& state,
                                                   const RunRecord& run);

}  // namespace fl
