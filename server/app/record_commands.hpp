// SPDX-License-Identifier: Apache-2.0
// The sub-commands that make files of a run's records or look at them more closely than `history`
// does. Their rows are in commands.cpp. They work beside a running server or without one.
#pragma once

#include "server/app/command_line.hpp"
#include "server/history/store.hpp"

namespace fl {

/// The run of --run; without the flag, the run that a reader most likely wants to see. Errors:
/// not_found.
[[nodiscard]] Result<RunRecord> asked_run(Store& store, RunId run);

/// history --plot.
[[nodiscard]] Result<void> plot_run(Store& store, const ServerOptions& options);

/// compare RUN RUN.
void declare_compare(CLI::App& command, ServerOptions& options);
[[nodiscard]] Result<void> print_comparison(const ServerOptions& options);

/// export FILE.
void declare_export(CLI::App& command, ServerOptions& options);
[[nodiscard]] Result<void> export_checkpoint(const ServerOptions& options);

/// backup FOLDER.
void declare_backup(CLI::App& command, ServerOptions& options);
[[nodiscard]] Result<void> make_backup(const ServerOptions& options);

/// prune.
void declare_prune(CLI::App& command, ServerOptions& options);
[[nodiscard]] Result<void> prune_history(const ServerOptions& options);

}  // namespace fl
