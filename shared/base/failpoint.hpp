// SPDX-License-Identifier: Apache-2.0
// Failpoints: named places, before and after every durable step, at which tests kill the process
// as a power cut or `kill -9` would. With FL_FAILPOINT=NAME[:N] in the environment, the N-th call
// of failpoint(NAME) sends SIGKILL to this process (default: the first call). Without it a
// failpoint costs one load and one branch. Any thread.
#pragma once

#include <string_view>

namespace fl {

void failpoint(std::string_view name);

}  // namespace fl
