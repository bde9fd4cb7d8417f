// SPDX-License-Identifier: Apache-2.0
// The sub-commands of fl-server. They read or change the state folder, beside a running server or
// without one.
#pragma once

#include "server/app/command.hpp"

#include <span>

namespace fl::server {

/// All sub-commands, in the order in which --help shows them.
[[nodiscard]] std::span<const Command> server_commands();

}  // namespace fl::server
