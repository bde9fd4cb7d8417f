// SPDX-License-Identifier: Apache-2.0
// `fl-server doctor`: whether this machine can serve a federation: its port and address, the
// authority, the clock, the disk, the history, open files and memory. It changes nothing, and may
// run beside the server. It prints lines, and ends with an error if one of them is a failure.
#pragma once

#include "server/app/command.hpp"

namespace fl::server {

[[nodiscard]] Command doctor_command();

}  // namespace fl::server
