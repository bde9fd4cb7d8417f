// SPDX-License-Identifier: Apache-2.0
// The sub-commands that print what is in the history. They work beside a running server or without
// one.
#pragma once

#include "server/app/command.hpp"

namespace fl::server {

[[nodiscard]] Command history_command();
[[nodiscard]] Command clients_command();
[[nodiscard]] Command audit_command();

}  // namespace fl::server
