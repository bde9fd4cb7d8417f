// SPDX-License-Identifier: Apache-2.0
// `fl-server doctor`: whether this machine can serve a federation: its port and address, the
// authority, the clock, the disk, the history, open files and memory. It changes nothing, and may
// run beside the server.
#pragma once

#include "server/app/command_line.hpp"

namespace fl {

void declare_doctor(CLI::App& command, ServerOptions& options);
/// Prints the lines. An error if one of them fails.
[[nodiscard]] Result<void> run_doctor(const ServerOptions& options);

}  // namespace fl
