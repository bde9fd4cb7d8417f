// SPDX-License-Identifier: Apache-2.0
// The sub-commands about people who may control the server, and about ending a run. Their rows are
// in commands.cpp.
#pragma once

#include "server/app/command_line.hpp"

namespace fl {

/// operator add|list|revoke.
void declare_operator(CLI::App& command, ServerOptions& options);
[[nodiscard]] Result<void> change_operators(const ServerOptions& options);

/// end-run RUN.
void declare_end_run(CLI::App& command, ServerOptions& options);
[[nodiscard]] Result<void> end_run_now(const ServerOptions& options);

}  // namespace fl
