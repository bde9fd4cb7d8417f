// SPDX-License-Identifier: Apache-2.0
// What a run is judged by: its main metric and its target, from --metric, --target and
// --target-accuracy. Pure functions; any thread.
#pragma once

#include "shared/base/error.hpp"
#include "shared/params/metric.hpp"

#include <optional>
#include <span>
#include <string>

namespace fl::server {

struct RunSettings;

/// A bound of a metric. A run ends once an evaluator measures a value within it.
struct Target {
  std::string metric;
  bool lower_is_better = false;  // The sign: true for "<=", false for ">=".
  double bound = 0;

  [[nodiscard]] bool is_met(double value) const {
    return lower_is_better ? value <= bound : value >= bound;
  }
  friend bool operator==(const Target&, const Target&) = default;
};

/// Reads "NAME>=X" or "NAME<=X"; spaces around the parts are ignored. NAME is any name of a metric,
/// or "loss"; where it has such signs in it, the last one counts. The sign must fit the direction
/// of a known metric, and X must be from 0 to 1 for a fraction. Errors: invalid_input.
[[nodiscard]] Result<Target> parse_target(const std::string& text);

/// Checks the value of --metric: the name of a metric or "loss"; "": the first that is reported.
/// Errors: invalid_input.
[[nodiscard]] Result<void> check_main_metric(const std::string& name);

/// The target of --target or --target-accuracy; nothing if there is none. The settings have passed
/// check_settings().
[[nodiscard]] std::optional<Target> target_of(const RunSettings& settings);

/// How a metric is judged: by the target's sign if the target names it, else by its known kind,
/// else by `kinds`; otherwise higher is better and the mean is exact.
[[nodiscard]] MetricKind judged_kind(const std::string& name, const std::optional<Target>& target,
                                     std::span<const MetricKind> kinds);

/// Checks what a client declares against the target: a metric's direction must be that of the
/// target's sign. Errors: invalid_input, for the client's user.
[[nodiscard]] Result<void> check_direction(std::span<const MetricKind> declared,
                                           const std::optional<Target>& target);

}  // namespace fl::server
