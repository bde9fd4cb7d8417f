// SPDX-License-Identifier: Apache-2.0
// Which version of a run is the best by the run's main metric.
//
// The figures are those that `fl-server history` shows. Each was measured on the version that it is
// recorded for: evaluators measure every version, and trainers the version that they train from, so
// what the trainers of round r say is about version r - 1. Where an evaluator has measured the
// metric in a run, the figures of trainers do not count. Several clients' figures of one version
// make one value (counted_claims.hpp). Pure functions; any thread.
#pragma once

#include "server/history/counted_claims.hpp"
#include "server/history/records.hpp"

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fl::server {

/// One version, and the values of one metric that clients have measured for it.
struct MeasuredVersion {
  Version version = 0;
  bool is_kept = true;  // The version's file is on the disk.
  std::vector<Claim> claims;
};

/// The measurements of a run by one metric that count.
struct MeasuredVersions {
  bool by_evaluators = false;
  std::vector<MeasuredVersion> versions;  // By number.
};

struct BestVersion {
  Version version = 0;
  bool is_kept = true;
  MetricFigure figure = {};
  std::size_t clients = 0;  // The number of clients that have measured it.
  bool by_evaluators = false;
};

/// The best version of each run that has one.
using BestVersions = std::map<RunId, BestVersion>;

/// The version with the best value, and the earliest of those that are equally good. A version
/// without a finite value is never the best. None: no version has such a value.
[[nodiscard]] std::optional<BestVersion> best_of(const MetricKind& kind,
                                                 const MeasuredVersions& measured);

/// In words for people: "version 7, accuracy 91.30 %".
[[nodiscard]] std::string best_text(const BestVersion& best);

}  // namespace fl::server
