// SPDX-License-Identifier: Apache-2.0
// What people do at the command line of fl-server, for the audit: who it was, and for each
// sub-command that changes something a text. The row is written first, so nothing is done that the
// audit does not have. Blocking (the store).
#pragma once

#include "server/app/command_line.hpp"
#include "server/history/store.hpp"

#include <string>

namespace fl {

/// "alice at the command line", by the user of this process.
[[nodiscard]] std::string command_line_user();

/// Writes what the command does into the audit, and does it. If it fails there is another row.
/// Returns the exit code. Errors: the command's; or the audit can't be written, unless the command
/// only reads.
[[nodiscard]] Result<int> run_command(const Command& command, const ServerOptions& options);

/// For the audit: the server begins to serve, with flags that change a run.
[[nodiscard]] Result<void> note_start(Store& store, const ServerOptions& options);

/// The role and the limit that an invitation gives, for the audit: "with the role evaluator".
[[nodiscard]] std::string terms_of_invitation(const std::string& role,
                                              const std::optional<std::uint64_t>& examples_max);

// One for each sub-command that does something.
[[nodiscard]] Act queue_act(const ServerOptions& options);
[[nodiscard]] Act export_act(const ServerOptions& options);
[[nodiscard]] Act backup_act(const ServerOptions& options);
[[nodiscard]] Act prune_act(const ServerOptions& options);
[[nodiscard]] Act enroll_act(const ServerOptions& options);
[[nodiscard]] Act revoke_act(const ServerOptions& options);
[[nodiscard]] Act end_run_act(const ServerOptions& options);
[[nodiscard]] Act operator_act(const ServerOptions& options);
[[nodiscard]] Act rotate_act(const ServerOptions& options);

}  // namespace fl
