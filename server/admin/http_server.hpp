// SPDX-License-Identifier: Apache-2.0
// The admin pages, plain HTTP for this machine (or a proxy that authenticates): /healthz, /metrics
// (Prometheus text), /api/rounds and /api/choices (JSON, page by page), and the probes /livez and
// /readyz. Read-only. On the io
// threads. It asks the engine on its strand and the history on a thread of its own.
#pragma once

#include "server/admin/admin_door.hpp"
#include "server/admin/admin_history.hpp"
#include "server/admin/probes.hpp"
#include "server/net/listener.hpp"
#include "server/round/current_engine.hpp"
#include "shared/net/http.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace fl {

class Admin {
 public:
  struct Options {
    /// Names by which browsers and scrapers may reach the pages, beside IP addresses and localhost.
    std::vector<std::string> hosts;
    std::string token;  // Requests must have it ("Authorization: Bearer TOKEN"); "": none.
  };

  Admin(net::io_context& io, const CurrentEngine& current, std::unique_ptr<AdminHistory> history,
        AdminDoor door, Options options, const Probes& probes)
      : io_(io),
        current_(current),
        history_(std::move(history)),
        door_(std::move(door)),
        probes_(probes),
        options_(std::make_shared<const Options>(std::move(options))) {}

  void start();
  /// Any thread. Requests that are under way go on.
  void close();
  /// Who may see the pages from now on. Any thread.
  void change(Options options);

 private:
  [[nodiscard]] std::shared_ptr<const Options> options() const;
  Awaitable<void> accept();
  Awaitable<void> serve(PlainSocket socket);
  Awaitable<HttpAnswer> answer(HttpRequest request);
  Awaitable<HttpAnswer> page(std::string target);

  net::io_context& io_;
  const CurrentEngine& current_;
  std::unique_ptr<AdminHistory> history_;
  AdminDoor door_;
  const Probes& probes_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Options> options_;  // Under the mutex.
  std::atomic<int> requests_ = 0;
  std::atomic<bool> is_closed_ = false;
};

/// Whether a request with this Host header may be answered: an IP address, localhost, or one of the
/// names. A web page that lets its own name point to this machine (DNS rebinding) has another one.
[[nodiscard]] bool is_host_allowed(std::string_view host, const std::vector<std::string>& names);

/// Prometheus text format 0.0.4.
[[nodiscard]] std::string format_metrics(const EngineStatus& status);
/// The page /healthz. `metrics` has what evaluators measured of the newest version, by name.
[[nodiscard]] std::string format_health(const EngineStatus& status);

}  // namespace fl
