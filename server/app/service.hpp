// SPDX-License-Identifier: Apache-2.0
// fl-server as a service of the machine that it runs on: with a pulse, which systemd's
// watchdog and the probes follow, and with flags that SIGHUP reads again. serve() owns it.
#pragma once

#include "server/admin/http_server.hpp"
#include "server/admin/probes.hpp"
#include "server/app/options.hpp"
#include "server/history/store_thread.hpp"
#include "server/round/engines.hpp"
#include "shared/base/async/pulse.hpp"
#include "shared/base/async/reload_signal.hpp"

#include <atomic>
#include <memory>
#include <optional>
#include <string>

namespace fl::server {

class Service {
 public:
  struct Parts {
    const Engines& engines;
    std::shared_ptr<const StoreThread::Pause> pause;
    Offload& store_thread;
    Admin* admin;  // Null with --admin off.
    /// Reads the flags about the admin pages, and the token's file.
    Result<Admin::Options> (*read_access)(const ServeOptions& options);
  };

  Service(net::io_context& io, net::any_io_executor strand, ServiceManager manager,
          ServeOptions options);

  [[nodiscard]] const Probes& probes() const { return probes_; }
  /// The limits of traffic, as the flags are now.
  [[nodiscard]] const Governors& traffic() const { return traffic_; }
  /// Says that clients can connect. Call it once; `parts` must live until the io_context has
  /// stopped.
  void start(const Parts& parts);
  /// Says that the server has been asked to end. Any thread.
  void stopping();

 private:
  Awaitable<std::string> look();
  void reload();
  Result<FlagReload> read_again();

  net::io_context& io_;
  net::any_io_executor strand_;
  const ServiceManager manager_;
  Pulse pulse_;
  Probes probes_;
  ServeOptions options_;  // The options that the server follows now. Used by reload() only.
  const Governors traffic_;
  std::optional<Parts> parts_;
  std::optional<ReloadSignal> reload_signal_;
  std::atomic<bool> is_stopping_ = false;
};

}  // namespace fl::server
