// SPDX-License-Identifier: Apache-2.0
// The sub-command about people who may control the server.
#pragma once

#include "server/app/command.hpp"

namespace fl::server {

[[nodiscard]] Command operator_command();

}  // namespace fl::server
