// SPDX-License-Identifier: Apache-2.0
#include "shared/base/write_signals.hpp"

#include <csignal>

namespace fl {

void ignore_write_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

void restore_write_signals() {
  std::signal(SIGPIPE, SIG_DFL);
  std::signal(SIGXFSZ, SIG_DFL);
}

}  // namespace fl
