// SPDX-License-Identifier: Apache-2.0
// ClientService makes the client a service of systemd: it feeds the watchdog, and reads the flags
// again at SIGHUP. On the agent's strand, but for stopping().
#pragma once

#include "client/command_line.hpp"
#include "shared/base/async/pulse.hpp"
#include "shared/base/async/reload_signal.hpp"

#include <string>

namespace fl::client {

class ClientService {
 public:
  /// `options` must outlive this object. `status`: for `systemctl status`.
  ClientService(net::any_io_executor strand, const ServiceManager& manager,
                const ClientOptions& options, Governors traffic, std::string status);

  /// Any thread.
  void stopping() const { manager_.stopping(); }
  /// Nothing of it waits any more.
  void end();

 private:
  Awaitable<std::string> look() const { co_return status_; }
  void reload();

  const ServiceManager& manager_;
  const ClientOptions& options_;
  const Governors traffic_;
  std::string status_;
  GivenFlags flags_;  // As the client follows them.
  Pulse pulse_;
  ReloadSignal reload_signal_;
};

}  // namespace fl::client
