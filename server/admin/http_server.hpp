// SPDX-License-Identifier: Apache-2.0
// The admin pages, plain HTTP for this machine (or a proxy that authenticates): the dashboard with
// the JSON that it shows, /healthz, /metrics (Prometheus text), the probes /livez and /readyz, and
// the control desk. On the io threads. It asks the engine on its strand and the history on a thread
// of its own.
#pragma once

#include "server/admin/access.hpp"
#include "server/admin/admin_door.hpp"
#include "server/admin/admin_history.hpp"
#include "server/admin/control_desk.hpp"
#include "server/admin/live_feed.hpp"
#include "server/admin/metrics.hpp"
#include "server/admin/probes.hpp"
#include "server/round/current_engine.hpp"
#include "shared/base/async/offload.hpp"
#include "shared/base/limits.hpp"
#include "shared/net/http.hpp"

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace fl {

class Admin {
 public:
  struct Options {
    AdminAccess::Options access;
    std::filesystem::path state;  // The folder with the history and the checkpoints.
    bool show_clients = false;    // Figures of single clients' data too.
    /// How long a stream waits for its reader to take what is sent.
    Duration stall_max = limits::admin_stream_stall;
    std::shared_ptr<Metrics> metrics;
  };

  Admin(net::io_context& io, const CurrentEngine& current, std::unique_ptr<AdminHistory> history,
        AdminDoor door, std::unique_ptr<ControlStore> store, std::vector<ControlAction> actions,
        Options options, const Probes& probes);

  void start();
  /// Any thread. Requests that are under way go on; streams of events end.
  void close();
  /// Who may see the pages from now on. Returns whether the token is another. Any thread.
  bool change(AdminAccess::Options access) { return access_.change(std::move(access)); }

 private:
  Awaitable<void> accept();
  Awaitable<void> serve(PlainSocket socket);
  /// What the request may not have, or whoever makes it.
  Awaitable<std::optional<PageAnswer>> refuse(const HttpRequest& request);
  Awaitable<PageAnswer> answer(HttpRequest request);
  Awaitable<PageAnswer> page(std::string path, std::string query);
  Awaitable<PageAnswer> rounds_page(std::string query, bool is_choices);
  Awaitable<PageAnswer> status_page();
  Awaitable<PageAnswer> fleet_page(std::string query);
  Awaitable<PageAnswer> history_page(const HistoryPage& page, std::string query);
  Awaitable<void> stream_events(PlainStream& stream, const HttpRequest& request);
  Awaitable<void> send_version(PlainStream& stream, std::string query, bool is_head);

  net::io_context& io_;
  const CurrentEngine& current_;
  std::unique_ptr<AdminHistory> history_;
  AdminDoor door_;
  std::unique_ptr<ControlStore> store_;
  Options options_;
  AdminAccess access_;
  ControlDesk desk_;
  const Probes& probes_;
  LiveFeed feed_;
  Offload disk_{1};  // Reads checkpoints that are sent.
  std::atomic<int> requests_ = 0;
  /// Of the requests, the streams of events and the downloads. Shared: a stream that the end of the
  /// program cuts off may outlive this object.
  std::shared_ptr<std::atomic<int>> streams_ = std::make_shared<std::atomic<int>>(0);
  std::atomic<bool> is_closed_ = false;
};

/// The page /healthz. `metrics` has what evaluators measured of the newest version, by name.
[[nodiscard]] std::string format_health(const EngineStatus& status);

}  // namespace fl
