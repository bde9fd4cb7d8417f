// SPDX-License-Identifier: Apache-2.0
// Chooses the run that a server works on: the oldest one that is not finished. Runs are rows of the
// history. A run is queued by writing its row, from this process or from another one beside it.
// Blocking (the store).
#pragma once

#include "server/app/options.hpp"
#include "server/history/store.hpp"
#include "server/round/run_files.hpp"

#include <filesystem>
#include <optional>

namespace fl::server {

struct ChosenRun {
  RunRecord record;
  RunSettings settings;
};

/// At a server's start: the run to go on with, or a new one. The given flags replace the stored
/// settings for good; `conflict` if the run can't change one of them any more. A queued run keeps
/// the settings it was queued with. --new-run ends all others (RunState::stopped). With --stay and
/// no other run, the result is the finished run: it ends at once, and the server waits. A new run
/// gets a random seed, unless --seed gives one. `first`: the settings of a first run, if the caller
/// has read its tensors already (take_tensors).
[[nodiscard]] Result<ChosenRun> choose_run(Store& store, const ServeOptions& options,
                                           const std::optional<RunSettings>& first = {});

/// The oldest run that is not finished; none if all are finished.
[[nodiscard]] Result<std::optional<ChosenRun>> next_run(Runs& runs);

/// The settings with the model of the newest run that has one (Runs::newest_begun()): clients have
/// data for it. A new run that names no model has it. A custom model comes with its file of initial
/// weights, unless the settings name one.
[[nodiscard]] Result<RunSettings> with_newest_model(Runs& runs, RunSettings settings);

/// Says in words that a new run takes the newest run's model, and which of that run's settings it
/// does not take over; "" if it takes over nothing.
[[nodiscard]] Result<std::string> others_of_newest(Runs& runs, const RunOptions& options);

/// Adds a run behind those that are not finished. `conflict` if there are limits::runs_queued_max.
[[nodiscard]] Result<RunRecord> queue_run(Runs& runs, const RunOptions& options);

/// The folder of a run's checkpoints: STATE/checkpoints for the first run of a state,
/// STATE/checkpoints/run-N for a later run N.
[[nodiscard]] std::filesystem::path checkpoints_of(const std::filesystem::path& state,
                                                   const RunRecord& run);

/// The folder of a run's kept updates: STATE/kept-updates/run-N.
[[nodiscard]] std::filesystem::path kept_updates_of(const std::filesystem::path& state,
                                                    const RunRecord& run);

/// The folders of a run while it goes on. The spool and the references are those of the state,
/// which a run has to itself: another run may have them when this one is over (Engines::add).
[[nodiscard]] RunFiles::Paths paths_of(const std::filesystem::path& state, const RunRecord& run);

}  // namespace fl::server
