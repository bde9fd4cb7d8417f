// SPDX-License-Identifier: Apache-2.0
// fl-server without a sub-command: puts the parts together, runs them, takes them apart in order.
// On the main thread; returns when all is taken apart.
#pragma once

#include "server/app/command_line.hpp"

namespace fl {

/// Returns the exit code: 0 when the run finished or was stopped cleanly.
[[nodiscard]] Result<int> serve(const ServerOptions& options);

}  // namespace fl
