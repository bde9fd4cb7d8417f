// SPDX-License-Identifier: Apache-2.0
#include "server/run/best_of_run.hpp"

#include "server/run/target.hpp"

#include <utility>
#include <vector>

namespace fl::server {

Result<MetricKind> main_metric_of(Store& store, RunId run, const RunSettings& settings) {
  const auto target = target_of(settings);
  std::string name = !settings.metric.empty() ? settings.metric : target ? target->metric : "";
  if (name.empty()) {
    FL_TRY(name, store.measurements().main_metric(run));
  }
  FL_TRY(const auto declared, store.measurements().declared(run));
  std::vector<MetricKind> kinds;
  for (const DeclaredMetric& metric : declared) kinds.push_back(metric.kind);
  return judged_kind(name, target, kinds);
}

Result<std::optional<BestVersion>> best_of_run(Store& store, RunId run, const RunSettings& settings,
                                               Measurements::Of which) {
  FL_TRY(const MetricKind kind, main_metric_of(store, run, settings));
  FL_TRY(const auto measured, store.measurements().measured(run, kind.name, which));
  return best_of(kind, measured);
}

Result<std::optional<BestVersion>> best_of_run(Store& store, const RunRecord& run,
                                               Measurements::Of which) {
  RunSettings settings;
  // The first histories have runs without settings.
  if (!run.config_json.empty()) {
    FL_TRY(settings, settings_from_json(run.config_json));
  }
  return best_of_run(store, run.id, settings, which);
}

Result<BestVersions> best_of_runs(Store& store, const std::vector<RoundSummary>& rounds) {
  BestVersions best;
  RunId last = 0;
  for (const RoundSummary& round : rounds) {
    if (round.run == std::exchange(last, round.run)) continue;
    FL_TRY(const auto run, store.runs().find(round.run));
    if (!run) continue;
    FL_TRY(const auto found, best_of_run(store, *run, Measurements::Of::all));
    if (found) best[round.run] = *found;
  }
  return best;
}

}  // namespace fl::server
