// SPDX-License-Identifier: Apache-2.0
// The hosts of a server's sessions, as admission sees them: one for each run that goes on. All
// hosts of a server share one strand. Any thread.
#pragma once

#include "server/host/session_host.hpp"

#include <memory>
#include <vector>

namespace fl::server {

class SessionHosts {
 public:
  virtual ~SessionHosts() = default;
  /// The host that a new session joins. Never null. It may be the host of a run that is over: it
  /// tells clients so, and takes none.
  [[nodiscard]] virtual std::shared_ptr<SessionHost> joined() const = 0;
  /// The hosts of all runs that go on, and the one that new sessions join.
  [[nodiscard]] virtual std::vector<std::shared_ptr<SessionHost>> all() const = 0;
};

}  // namespace fl::server
