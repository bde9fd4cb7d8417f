// SPDX-License-Identifier: Apache-2.0
// The sub-commands that print what is in the history. They work beside a running server or without
// one.
#pragma once

#include "server/app/command.hpp"
#include "server/history/runs.hpp"

namespace fl::server {

/// The run with this number; 0: the run that a reader most likely wants to see. Errors: not_found.
[[nodiscard]] Result<RunRecord> asked_run(Runs& runs, RunId run);

[[nodiscard]] Command history_command();
[[nodiscard]] Command clients_command();
[[nodiscard]] Command audit_command();

}  // namespace fl::server
