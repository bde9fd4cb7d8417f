// SPDX-License-Identifier: Apache-2.0
// The sub-command about differential privacy. It needs no server and no state.
#pragma once

#include "server/app/command.hpp"

namespace fl::server {

[[nodiscard]] Command privacy_command();

}  // namespace fl::server
