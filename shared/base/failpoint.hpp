// Named places at which the tests kill a process, as a power cut or `kill -9` would: before and
// after every durable step. FL_FAILPOINT=NAME[:N] in the environment kills at the N-th (default
// first) passage of NAME. Without it a failpoint costs one load and one branch. Any thread.
#pragma once

#include <string_view>

namespace fl {

void failpoint(std::string_view name);

}  // namespace fl
