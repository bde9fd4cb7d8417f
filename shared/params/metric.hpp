// SPDX-License-Identifier: Apache-2.0
// Metrics by name: what trainers measure of a version besides its loss, and how the values of
// several clients make one. Pure functions; any thread.
#pragma once

#include "shared/base/error.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

/// How the values of several clients make one.
enum class Combine {
  mean,      // The weighted mean is exact.
  log_mean,  // The exponential of the logarithms' weighted mean is exact, as for perplexity.
  none,      // No mean is exact, as for AUROC. The weighted mean is shown as an approximation.
};

/// A trainer's declaration of one metric, made before it reports any value.
struct MetricKind {
  std::string name;
  bool lower_is_better = false;
  Combine combine = Combine::mean;
  friend bool operator==(const MetricKind&, const MetricKind&) = default;
};

/// One client's value of a metric. The weight says how much the value counts beside other clients'.
/// With weight 0 that is the number of examples. Otherwise it is the denominator of the value: F1
/// of all clients' data is exact if `value` is the local F1 and `weight` the local 2tp + fp + fn.
struct MetricValue {
  std::string name;
  double value = 0;   // NaN: not defined on this client's data, or not finite. It is left out.
  double weight = 0;  // Finite, 0 to limits::metric_weight_max.
  friend bool operator==(const MetricValue&, const MetricValue&) = default;
};

/// The name of the mean loss, which every trainer reports and no trainer declares.
inline constexpr std::string_view loss_name = "loss";
/// The prefix of metrics of a client's own model (Ditto): "own_accuracy".
inline constexpr std::string_view own_prefix = "own_";

/// A metric that is known by its name.
struct KnownMetric {
  std::string_view name;
  bool lower_is_better = false;
  Combine combine = Combine::mean;
  bool is_fraction = false;  // From 0 to 1; shown in percent.
};
[[nodiscard]] std::span<const KnownMetric> known_metrics();
/// Null if the name is not known. Knows "loss" too. Capital letters are taken as small ones, so
/// that "MAE" has the direction of "mae"; they are metrics of their own all the same.
[[nodiscard]] const KnownMetric* find_known_metric(std::string_view name);
/// The kind of a known metric. The name must be known.
[[nodiscard]] MetricKind known_metric(std::string_view name);

/// Checks a name of a metric that a trainer declares: any printable() text of 1 to
/// limits::metric_name_bytes_max bytes that neither begins nor ends with a space, is not "loss",
/// and does not begin with "own_". Errors: invalid_input.
[[nodiscard]] Result<void> check_metric_name(std::string_view name);
/// Checks what a trainer declares: at most limits::metrics_max metrics, their names, that none is
/// there twice, and that known ones have their direction. They are combined as the table says, or
/// by `none` (F1 without its counts). Errors: invalid_input.
[[nodiscard]] Result<void> check_metrics(std::span<const MetricKind> kinds);
/// Checks a value against what its trainer has declared: its name, weight and range. A value that
/// is infinite or NaN passes. Errors: invalid_input.
[[nodiscard]] Result<void> check_metric_value(const MetricValue& value,
                                              std::span<const MetricKind> kinds);

/// Checks the weight of a loss: finite, 0 to limits::metric_weight_max. Errors: invalid_input.
[[nodiscard]] Result<void> check_predictions(double predictions);

/// A value and how much it counts.
struct Weighted {
  double value = 0;
  double weight = 0;  // Above 0.
};
/// One value of several. Values that are not finite are left out; with log_mean those that are not
/// above 0 too. Returns nothing if none is left. The order of the values does not change the result
/// by more than rounding.
[[nodiscard]] std::optional<double> combine(Combine how, std::span<const Weighted> values);

[[nodiscard]] std::string_view to_text(Combine how);  // "mean", "log_mean", "none".
[[nodiscard]] std::optional<Combine> combine_of(std::string_view text);

/// The value of the metric with this name; null if there is none.
[[nodiscard]] const MetricValue* find_metric(std::span<const MetricValue> values,
                                             std::string_view name);
/// A value as people read it: "86.10%" for a fraction, "0.3456" for a loss, otherwise "21.34".
[[nodiscard]] std::string metric_text(std::string_view name, double value);
/// The measured values, in a line of a log: "accuracy 86.10%, top5 99.30%, loss 0.3456".
[[nodiscard]] std::string metrics_text(std::span<const MetricValue> values, double loss);

}  // namespace fl
