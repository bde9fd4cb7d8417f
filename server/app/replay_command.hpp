// SPDX-License-Identifier: Apache-2.0
// replay RUN: makes rounds whose updates were kept again, and compares.
#pragma once

#include "server/app/command.hpp"

namespace fl::server {

/// The exit code when a replayed round differs from the recorded one.
inline constexpr int replay_differs = 4;

[[nodiscard]] Command replay_command();

}  // namespace fl::server
