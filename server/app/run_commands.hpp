// SPDX-License-Identifier: Apache-2.0
// The sub-commands that queue and end runs, beside a running server or without one.
#pragma once

#include "server/app/command.hpp"

namespace fl::server {

[[nodiscard]] Command queue_command();
[[nodiscard]] Command end_run_command();

}  // namespace fl::server
