// SPDX-License-Identifier: Apache-2.0
// The sub-commands that make files of a run's records or look at them more closely than `history`
// does, and the one that removes them. They work beside a running server or without one.
#pragma once

#include "server/app/command.hpp"

namespace fl::server {

[[nodiscard]] Command compare_command();
[[nodiscard]] Command export_command();
[[nodiscard]] Command backup_command();
[[nodiscard]] Command prune_command();

}  // namespace fl::server
