// SPDX-License-Identifier: Apache-2.0
#include "server/admin/pages/live_view.hpp"

#include "server/admin/pages/json_values.hpp"
#include "server/history/rows.hpp"
#include "shared/base/version.hpp"

#include <array>
#include <cmath>
#include <string_view>

namespace fl::server {

namespace {

/// An older sample says nothing about the speed now; a younger one too little.
constexpr double sample_s_max = 10;
constexpr double sample_s_min = 0.5;
/// A transfer that needs more of its time than this may be late.
constexpr double risk_part = 0.7;

constexpr std::array<std::string_view, activity_count> activity_names{
    "away",      "present",     "idle",     "paused",  "downloading", "training",
    "uploading", "interrupted", "checking", "waiting", "accepted",    "failed"};

constexpr std::array<std::string_view, 10> phase_names{"starting",
                                                       "restoring",
                                                       "waiting_for_clients",
                                                       "collecting",
                                                       "making_model",
                                                       "waiting_for_absent",
                                                       "waiting_for_evaluations",
                                                       "dismissing",
                                                       "finished",
                                                       "stopping"};

std::string_view name_of(Risk risk) {
  return risk == Risk::none ? "none" : risk == Risk::some ? "some" : "late";
}

nlohmann::json transfer_json(const TransferStatus& transfer, double now) {
  const Forecast seen = forecast(transfer);
  return {{"client", transfer.client},
          {"direction", transfer.is_up ? "up" : "down"},
          {"number", transfer.number},
          {"bytes", transfer.bytes},
          {"done", transfer.done},
          {"bytes_per_s", std::round(seen.per_s)},
          {"ends_at", moment_in(seen.left_s, now)},
          {"due_at", moment_in(transfer.due_s, now)},
          {"risk", seen.risk ? nlohmann::json(name_of(*seen.risk)) : nlohmann::json()}};
}

nlohmann::json metrics_json(const EngineStatus& status) {
  nlohmann::json metrics = nlohmann::json::array();
  for (const MetricFigure& figure : status.metrics)
    metrics.push_back(
        {{"name", figure.name}, {"value", figure.value}, {"is_exact", figure.is_exact}});
  return metrics;
}

nlohmann::json activities_json(const LiveStatus& live) {
  nlohmann::json counts = nlohmann::json::object();
  for (std::size_t i = 1; i < activity_count; ++i)
    counts[std::string(activity_names[i])] = live.activities[i];
  return counts;
}

}  // namespace

std::string_view to_text(Activity activity) {
  return activity_names[static_cast<std::size_t>(activity)];
}

Forecast forecast(const TransferStatus& transfer) {
  Forecast seen;
  const auto come = static_cast<double>(transfer.done - transfer.offset);
  if (come <= 0 || transfer.seconds <= 0) return seen;
  seen.per_s = come / transfer.seconds;
  seen.left_s = static_cast<double>(transfer.bytes - transfer.done) / seen.per_s;
  if (!transfer.due_s) return seen;
  seen.risk = *seen.left_s > *transfer.due_s               ? Risk::late
              : *seen.left_s > risk_part * *transfer.due_s ? Risk::some
                                                           : Risk::none;
  return seen;
}

std::pair<double, double> LiveView::speeds(const EngineStatus& status, TimePoint now) {
  const Sample sample{now, status.bytes_up, status.bytes_down, status.run_key};
  const bool follows = before_ && before_->run == sample.run && before_->up <= sample.up &&
                       before_->down <= sample.down;
  const double passed = follows ? seconds(now - before_->at) : sample_s_max + 1;
  if (passed < sample_s_min) return speeds_;
  speeds_ = {};
  if (passed <= sample_s_max) {
    speeds_ = {std::round(static_cast<double>(sample.up - before_->up) / passed),
               std::round(static_cast<double>(sample.down - before_->down) / passed)};
  }
  before_ = sample;
  return speeds_;
}

std::string LiveView::text(const LiveStatus& live, const NewestRows& rows, HostFacts host,
                           TimePoint now) {
  const EngineStatus& status = live.status;
  const auto [up_per_s, down_per_s] = speeds(status, now);
  nlohmann::json transfers = nlohmann::json::array();
  for (const TransferStatus& transfer : live.transfers) {
    transfers.push_back(transfer_json(transfer, host.now));
    if (forecast(transfer).risk == Risk::late) ++host.transfers_at_risk;
  }
  nlohmann::json alerts = nlohmann::json::array();
  for (const Alert& alert : alerts_of(live, host))
    alerts.push_back(
        {{"level", to_text(alert.level)}, {"what", alert.what}, {"remedy", alert.remedy}});
  const nlohmann::json json{{"software", std::string("tributary ") + software_version},
                            {"run", status.run},
                            {"run_key", status.run_key},
                            {"model", status.model},
                            {"strategy", status.strategy},
                            {"codec", status.codec},
                            {"mode", live.is_async ? "async" : "sync"},
                            {"phase", phase_names[static_cast<std::size_t>(live.phase)]},
                            {"phase_text", status.phase},
                            {"paused", live.paused},
                            {"started_at", std::round(status.started_at)},
                            {"round", status.round},
                            {"rounds", status.rounds_total},
                            {"version", live.version},
                            {"target", live.target},
                            {"quorum", live.quorum},
                            {"asked", status.asked},
                            {"accepted", status.accepted},
                            {"refused", live.refused},
                            {"lost", live.lost},
                            {"due_at", moment_in(live.due_s, host.now)},
                            {"round_seconds", status.round_seconds},
                            {"clients", status.clients},
                            {"evaluators", status.evaluators},
                            {"present", status.present},
                            {"absent", live.absent},
                            {"activities", activities_json(live)},
                            {"bytes_up", status.bytes_up},
                            {"bytes_down", status.bytes_down},
                            {"up_per_s", up_per_s},
                            {"down_per_s", down_per_s},
                            {"metric", status.metric},
                            {"metrics", metrics_json(status)},
                            {"transfers", std::move(transfers)},
                            {"transfers_total", live.transfers_total},
                            {"alerts", std::move(alerts)},
                            {"newest_event", rows.event},
                            {"newest_audit", rows.audit}};
  return json_text(json);
}

}  // namespace fl::server
