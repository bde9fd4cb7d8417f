// SPDX-License-Identifier: Apache-2.0
// The admin pages, plain HTTP for this machine (or a proxy that authenticates): the dashboard with
// the JSON that it shows, /healthz, /metrics (Prometheus text), the probes /livez and /readyz, and
// the control desk. On the io threads. It asks the engine on its strand and the history on a thread
// of its own.
//
// A connection is a stranger (server/net/doorway.hpp) until it is known who asks. Probes, the
// dashboard's files, logins and refusals are answered in the places of strangers. What costs more
// has places of its own, by operator or address (visitor_places.hpp).
#pragma once

#include "server/admin/access.hpp"
#include "server/admin/admin_door.hpp"
#include "server/admin/admin_history.hpp"
#include "server/admin/control_desk.hpp"
#include "server/admin/live_feed.hpp"
#include "server/admin/metrics.hpp"
#include "server/admin/probes.hpp"
#include "server/admin/visitor_places.hpp"
#include "server/net/doorway.hpp"
#include "server/round/engines.hpp"
#include "shared/base/async/offload.hpp"
#include "shared/base/limits.hpp"
#include "shared/net/http.hpp"

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl::server {

class Admin {
 public:
  struct Options {
    AdminAccess::Options access;
    std::filesystem::path state;  // The folder with the history and the checkpoints.
    bool show_clients = false;    // Whether the pages show figures of single clients' data.
    /// How long a stream waits for its reader to take what is sent.
    Duration stall_max = limits::admin_stream_stall;
    std::shared_ptr<Metrics> metrics;
    /// The text of /api/settings: what a form must know of a run's settings. On the thread of
    /// ControlStore.
    std::function<Result<std::string>(Store& store)> setting_form;
  };

  Admin(net::io_context& io, const Engines& engines, std::unique_ptr<AdminHistory> history,
        AdminDoor door, std::unique_ptr<ControlStore> store, std::vector<ControlAction> actions,
        Options options, const Probes& probes);

  void start();
  /// Ends streams of events; other requests that are under way go on. Any thread.
  void close();
  /// Sets who may see the pages from now on. Returns whether the token has changed. Any thread.
  bool change(AdminAccess::Options access);

 private:
  std::function<void()> begin(PlainSocket socket, Strangers::Id id);
  Awaitable<void> watch();
  Awaitable<void> serve(std::shared_ptr<PlainStream> stream, Strangers::Id id);
  /// Answers what needs no visitor; none for a page that only visitors may see.
  Awaitable<std::optional<PageAnswer>> answer_stranger(const HttpRequest& request,
                                                       const Caller& caller);
  Awaitable<void> serve_visitor(PlainStream& stream, HttpRequest request,
                                std::optional<Visitor> visitor, Caller caller, Strangers::Id id);
  Awaitable<PageAnswer> answer(HttpRequest request, std::optional<Visitor> visitor, Caller caller);
  Awaitable<PageAnswer> page(std::string path, std::string query);
  /// A page that needs more than the history.
  struct EnginePage {
    std::string_view path;
    Awaitable<PageAnswer> (Admin::*answer)(std::string query);
  };
  [[nodiscard]] static std::span<const EnginePage> engine_pages();
  Awaitable<PageAnswer> health_page(std::string query);
  Awaitable<PageAnswer> metrics_page(std::string query);
  Awaitable<PageAnswer> status_page(std::string query);
  Awaitable<PageAnswer> fleet_page(std::string query);
  Awaitable<PageAnswer> settings_page(std::string query);
  Awaitable<PageAnswer> history_page(const HistoryPage& page, std::string query);
  Awaitable<void> stream_events(PlainStream& stream, const HttpRequest& request);
  Awaitable<void> send_version(PlainStream& stream, std::string query, bool is_head,
                               Visitor visitor, Caller caller);

  const Engines& engines_;
  std::unique_ptr<AdminHistory> history_;
  AdminDoor door_;
  std::unique_ptr<ControlStore> store_;
  Options options_;
  AdminAccess access_;
  ControlDesk desk_;
  const Probes& probes_;
  LiveFeed feed_;
  Offload disk_{1};  // Reads checkpoints that are sent.
  std::shared_ptr<VisitorPlaces> requests_;
  std::shared_ptr<VisitorPlaces> streams_;  // The places for streams of events and for downloads.
  Doorway<PlainProtocol> doorway_;
  std::atomic<bool> is_closed_ = false;
};

/// The page /healthz. `metrics` has what evaluators measured of the newest version, by name.
[[nodiscard]] std::string format_health(const EngineStatus& status);

}  // namespace fl::server
