// SPDX-License-Identifier: Apache-2.0
// Writes into the audit what people do at the command line of fl-server: each sub-command that
// changes something has a text for its row, with the name of the user. The row is written first, so
// nothing is done that the audit does not have. Blocking (the store).
#pragma once

#include "server/app/command_line.hpp"
#include "server/history/audit.hpp"

#include <string>

namespace fl::server {

/// "alice at the command line", by the user of this process.
[[nodiscard]] std::string command_line_user();

/// Writes what the given command does into the audit, and does it. If it fails there is another
/// row. Returns the exit code. Errors: the command's; conflict, where the history has an older
/// schema, as a server of that version may be using it; or the audit can't be written, unless the
/// command only reads.
[[nodiscard]] Result<int> run_command(const CommandLine& line);

/// For the audit: the server begins to serve, with flags that change a run.
[[nodiscard]] Result<void> note_start(Audit& audit, const ServeOptions& options);

/// For the audit: "makes a join token for the client, with the role evaluator and …".
[[nodiscard]] std::string text_of_invitation(const std::string& role,
                                             const std::optional<std::uint64_t>& examples_max);

/// For the audit: `--rounds 20 --codec "qsgd:8"`, the settings of a run that were given.
[[nodiscard]] std::string given_settings(const RunOptions& options);

}  // namespace fl::server
