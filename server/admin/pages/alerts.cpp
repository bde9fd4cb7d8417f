// SPDX-License-Identifier: Apache-2.0
#include "server/admin/pages/alerts.hpp"

#include "server/history/client_figures.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl::server {

namespace {

constexpr double day_s = 24 * 3600;
/// Clients renew a certificate by themselves, long before this.
constexpr double certificate_days_min = 14;
/// A disk with less than both is nearly full.
constexpr std::uint64_t disk_free_min = 2ULL << 30;
constexpr double disk_part_min = 0.05;

std::uint32_t count(const LiveStatus& live, Activity activity) {
  return live.activities[static_cast<std::size_t>(activity)];
}

/// "1 client", "3 clients".
std::string clients(std::size_t count) {
  return fmt::format("{} client{}", count, count == 1 ? "" : "s");
}

void add_host(std::vector<Alert>& alerts, const HostFacts& host) {
  if (!host.history_error.empty()) {
    alerts.push_back({EventLevel::error, "The history can't be read: " + host.history_error,
                      "Look at the disk where --state lies; the server's log says more."});
  }
  if (!host.disk_free || !host.disk_bytes || *host.disk_free >= disk_free_min) return;
  const double part = static_cast<double>(*host.disk_free) / static_cast<double>(*host.disk_bytes);
  if (part >= disk_part_min) return;
  alerts.push_back({EventLevel::warning,
                    fmt::format("The disk with the state is nearly full: {:.0f} MB are free",
                                static_cast<double>(*host.disk_free) / 1e6),
                    "Make room. A server without room pauses, and loses nothing."});
}

void add_round(std::vector<Alert>& alerts, const LiveStatus& live) {
  const EngineStatus& status = live.status;
  if (live.phase == Phase::waiting_for_clients && !live.unfit.empty()) {
    alerts.push_back(
        {EventLevel::warning,
         fmt::format("The run waits for {}, and clients that come can't take part: {}",
                     clients(live.min_clients), without_figures(live.unfit)),
         "Start clients that can, or take the run out of the queue: fl-server queue --drop RUN. "
         "If another run is queued, it goes first after the server's --queue-patience."});
  } else if (live.phase == Phase::waiting_for_clients) {
    alerts.push_back(
        {EventLevel::notice,
         fmt::format("The run waits for {}, and {} here", clients(live.min_clients),
                     status.clients == 1 ? "1 is" : fmt::format("{} are", status.clients)),
         "Start more clients, or start the server again with fewer --min-clients."});
  }
  if (live.phase == Phase::finished && status.present > 0) {
    alerts.push_back(
        {EventLevel::notice,
         fmt::format("No run goes on, and {} for one",
                     status.present == 1 ? "1 member waits"
                                         : fmt::format("{} members wait", status.present)),
         "Queue a run: fl-server queue, or the view Control after a login."});
  }
  if (live.phase != Phase::collecting) return;
  const std::uint32_t coming = status.asked - std::min(status.asked, live.refused + live.lost);
  const std::uint32_t possible = std::max(coming, status.clients + status.accepted);
  if (possible < live.quorum) {
    alerts.push_back(
        {EventLevel::warning,
         fmt::format("The round needs {} updates, and only {} can come", live.quorum, possible),
         "Bring clients back, or start the server again with fewer --min-clients."});
  }
  if (live.refused > 0) {
    alerts.push_back({EventLevel::warning,
                      fmt::format("{} of this round's updates {} refused", live.refused,
                                  live.refused == 1 ? "was" : "were"),
                      "The view Round says why, client by client."});
  }
}

void add_fleet(std::vector<Alert>& alerts, const LiveStatus& live, const HostFacts& host) {
  if (host.transfers_at_risk > 0) {
    alerts.push_back(
        {EventLevel::warning,
         fmt::format("{} will not be there in time",
                     host.transfers_at_risk == 1
                         ? "1 transfer"
                         : fmt::format("{} transfers", host.transfers_at_risk)),
         "A start of the server with a longer --deadline gives them time; --codec auto "
         "sends fewer bytes on slow links."});
  }
  if (live.absent > 0) {
    alerts.push_back(
        {EventLevel::notice, fmt::format("{} lost the connection", clients(live.absent)),
         "Clients come back by themselves. If one does not, its own log says why: in its "
         "terminal, or journalctl -u 'fl-client*' on its machine."});
  }
  if (const auto paused = count(live, Activity::paused); paused > 0) {
    alerts.push_back({EventLevel::warning,
                      fmt::format("{} missed too often and {} not asked for a while",
                                  clients(paused), paused == 1 ? "is" : "are"),
                      "The view Fleet says what last went wrong with them, and when they are asked "
                      "again."});
  }
  const double left = live.certificate_ends_at - host.now;
  if (live.certificate_ends_at > 0 && left < certificate_days_min * day_s) {
    alerts.push_back({EventLevel::warning,
                      fmt::format("The certificate of {} ends in {:.0f} days", live.certificate_of,
                                  std::max(0.0, left / day_s)),
                      "A client renews its certificate when it connects: start its fl-client "
                      "again, and read there "
                      "what it says of the renewal."});
  }
}

}  // namespace

std::vector<Alert> alerts_of(const LiveStatus& live, const HostFacts& host) {
  std::vector<Alert> alerts;
  if (!live.paused.empty()) {
    alerts.push_back({EventLevel::error, "Nothing goes on: " + live.paused,
                      "It goes on by itself once the cause is gone; nothing is lost."});
  }
  add_host(alerts, host);
  add_round(alerts, live);
  add_fleet(alerts, live, host);
  std::ranges::stable_sort(alerts, std::greater<>(), &Alert::level);
  return alerts;
}

}  // namespace fl::server
