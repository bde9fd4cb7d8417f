// SPDX-License-Identifier: Apache-2.0
// replay RUN: makes rounds whose updates were kept again, and compares.
#pragma once

#include "server/app/command_line.hpp"

namespace fl {

/// The exit code when a replayed round differs from the recorded one.
inline constexpr int replay_differs = 4;

void declare_replay(CLI::App& command, ServerOptions& options);
/// Returns the exit code.
[[nodiscard]] Result<int> replay_rounds(const ServerOptions& options);

}  // namespace fl
