// SPDX-License-Identifier: Apache-2.0
// fl-server without a sub-command: puts the parts together, runs them, takes them apart in order.
// On the main thread; returns when all is taken apart.
#pragma once

#include "server/app/options.hpp"
#include "shared/base/error.hpp"

namespace fl::server {

/// Returns the exit code: 0 when the run finished or was stopped cleanly.
[[nodiscard]] Result<int> serve(const ServeOptions& options);

}  // namespace fl::server
