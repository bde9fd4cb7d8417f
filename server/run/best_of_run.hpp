// SPDX-License-Identifier: Apache-2.0
// The best version of a run, as its history has it (server/history/best_version.hpp), judged as the
// run's settings say. Blocking: the functions read the store, on the thread that uses it.
#pragma once

#include "server/history/store.hpp"
#include "server/run/settings.hpp"

#include <optional>
#include <vector>

namespace fl::server {

/// The kind of the run's main metric, as it is judged (target.hpp).
[[nodiscard]] Result<MetricKind> main_metric_of(Store& store, RunId run,
                                                const RunSettings& settings);

/// The best version of all, or of those that are kept; none if nobody has measured any of them.
[[nodiscard]] Result<std::optional<BestVersion>> best_of_run(Store& store, RunId run,
                                                             const RunSettings& settings,
                                                             Measurements::Of which);
/// With the settings that are stored with the run.
[[nodiscard]] Result<std::optional<BestVersion>> best_of_run(Store& store, const RunRecord& run,
                                                             Measurements::Of which);

/// The best version, of all, of each of these rounds' runs.
[[nodiscard]] Result<BestVersions> best_of_runs(Store& store,
                                                const std::vector<RoundSummary>& rounds);

}  // namespace fl::server
