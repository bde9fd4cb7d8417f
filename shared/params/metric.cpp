// SPDX-License-Identifier: Apache-2.0
#include "shared/params/metric.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace fl {

namespace {

constexpr std::array known{
    KnownMetric{.name = "accuracy", .is_fraction = true},
    KnownMetric{.name = "top5", .is_fraction = true},
    KnownMetric{.name = "f1", .is_fraction = true},
    KnownMetric{.name = "precision", .is_fraction = true},
    KnownMetric{.name = "recall", .is_fraction = true},
    KnownMetric{.name = "auroc", .combine = Combine::none, .is_fraction = true},
    KnownMetric{.name = "r2", .combine = Combine::none},
    KnownMetric{.name = "mae", .lower_is_better = true},
    KnownMetric{.name = "mse", .lower_is_better = true},
    KnownMetric{.name = "rmse", .lower_is_better = true, .combine = Combine::none},
    KnownMetric{.name = "perplexity", .lower_is_better = true, .combine = Combine::log_mean},
    KnownMetric{.name = "expert_load", .lower_is_better = true},
    KnownMetric{.name = "dropped_tokens", .lower_is_better = true, .is_fraction = true},
    KnownMetric{.name = loss_name, .lower_is_better = true},
};

bool is_same_letter(char a, char b) {
  const auto small = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return small(a) == small(b);
}

/// The name as an error shows it; it may be any text.
std::string shown(std::string_view name) { return printable(name, limits::metric_name_bytes_max); }

std::string_view direction(bool lower_is_better) { return lower_is_better ? "lower" : "higher"; }

}  // namespace

std::span<const KnownMetric> known_metrics() { return known; }

const KnownMetric* find_known_metric(std::string_view name) {
  const auto found = std::ranges::find_if(known, [&](const KnownMetric& one) {
    return std::ranges::equal(one.name, name, is_same_letter);
  });
  return found == known.end() ? nullptr : &*found;
}

MetricKind known_metric(std::string_view name) {
  const KnownMetric* const found = find_known_metric(name);
  FL_ASSERT(found != nullptr);
  return MetricKind{std::string(name), found->lower_is_better, found->combine};
}

Result<void> check_metric_name(std::string_view name) {
  const bool is_text = printable(name) == name && !name.starts_with(' ') && !name.ends_with(' ');
  if (name.empty() || name.size() > limits::metric_name_bytes_max || !is_text) {
    return Error(Errc::invalid_input,
                 fmt::format("'{}' can't be the name of a metric: a name is printable text of 1 to "
                             "{} bytes, without spaces around it",
                             shown(name), limits::metric_name_bytes_max));
  }
  if (name == loss_name || name.starts_with(own_prefix)) {
    return Error(Errc::invalid_input,
                 fmt::format("the metric's name '{}' is reserved: choose another", name));
  }
  return {};
}

Result<void> check_metrics(std::span<const MetricKind> kinds) {
  if (kinds.size() > limits::metrics_max) {
    return Error(Errc::invalid_input, fmt::format("{} metrics are declared, and the limit is {}",
                                                  kinds.size(), limits::metrics_max));
  }
  for (const MetricKind& kind : kinds) {
    FL_CHECK(check_metric_name(kind.name));
    if (std::ranges::count(kinds, kind.name, &MetricKind::name) > 1)
      return Error(Errc::invalid_input, fmt::format("metric {} is declared twice", kind.name));
    const KnownMetric* const by_name = find_known_metric(kind.name);
    if (by_name == nullptr) continue;
    if (by_name->lower_is_better != kind.lower_is_better) {
      return Error(
          Errc::invalid_input,
          fmt::format("of metric {} {} values are better, not {} ones", kind.name,
                      direction(by_name->lower_is_better), direction(kind.lower_is_better)));
    }
    if (kind.combine != by_name->combine && kind.combine != Combine::none) {
      return Error(Errc::invalid_input,
                   fmt::format("the values of metric {} can't be combined by '{}': choose {}",
                               kind.name, to_text(kind.combine), to_text(by_name->combine)));
    }
  }
  return {};
}

Result<void> check_metric_value(const MetricValue& value, std::span<const MetricKind> kinds) {
  const auto kind = std::ranges::find(kinds, value.name, &MetricKind::name);
  if (kind == kinds.end()) {
    return Error(Errc::invalid_input,
                 fmt::format("metric '{}' was not declared", shown(value.name)));
  }
  if (!(value.weight >= 0 && value.weight <= limits::metric_weight_max)) {
    return Error(Errc::invalid_input,
                 fmt::format("metric {} has weight {}, which must be 0 to {}", value.name,
                             value.weight, limits::metric_weight_max));
  }
  if (!std::isfinite(value.value)) return {};
  const KnownMetric* const by_name = find_known_metric(value.name);
  const bool is_fraction = by_name != nullptr && by_name->is_fraction;
  if (is_fraction && !(value.value >= 0 && value.value <= 1)) {
    return Error(Errc::invalid_input,
                 fmt::format("{} is {}, and must be from 0 to 1", value.name, value.value));
  }
  if (kind->combine == Combine::log_mean && !(value.value > 0)) {
    return Error(Errc::invalid_input,
                 fmt::format("{} is {}, and must be above 0", value.name, value.value));
  }
  return {};
}

Result<void> check_predictions(double predictions) {
  if (predictions >= 0 && predictions <= limits::metric_weight_max) return {};
  return Error(Errc::invalid_input, fmt::format("the loss is a mean over {} predictions, and that "
                                                "must be 0 to {}",
                                                predictions, limits::metric_weight_max));
}

std::optional<double> combine(Combine how, std::span<const Weighted> values) {
  double sum = 0;
  double weights = 0;
  for (const Weighted& one : values) {
    if (!std::isfinite(one.value) || (how == Combine::log_mean && one.value <= 0)) continue;
    sum += one.weight * (how == Combine::log_mean ? std::log(one.value) : one.value);
    weights += one.weight;
  }
  if (weights <= 0) return std::nullopt;
  return how == Combine::log_mean ? std::exp(sum / weights) : sum / weights;
}

std::string_view to_text(Combine how) {
  switch (how) {
    case Combine::mean: return "mean";
    case Combine::log_mean: return "log_mean";
    case Combine::none: break;
  }
  return "none";
}

std::optional<Combine> combine_of(std::string_view text) {
  for (const Combine how : {Combine::mean, Combine::log_mean, Combine::none})
    if (to_text(how) == text) return how;
  return std::nullopt;
}

const MetricValue* find_metric(std::span<const MetricValue> values, std::string_view name) {
  const auto found = std::ranges::find(values, name, &MetricValue::name);
  return found == values.end() ? nullptr : &*found;
}

std::string metric_text(std::string_view name, double value) {
  if (name.starts_with(own_prefix)) name.remove_prefix(own_prefix.size());
  const KnownMetric* const known_name = find_known_metric(name);
  if (known_name != nullptr && known_name->is_fraction) return fmt::format("{:.2f}%", 100 * value);
  return name == loss_name ? fmt::format("{:.4f}", value) : fmt::format("{:.4g}", value);
}

std::string metrics_text(std::span<const MetricValue> values, double loss) {
  std::string text;
  for (const MetricValue& value : values)
    text += fmt::format("{} {}, ", value.name, metric_text(value.name, value.value));
  return text + fmt::format("loss {}", metric_text(loss_name, loss));
}

}  // namespace fl
