// SPDX-License-Identifier: Apache-2.0
#include "shared/wire/metric_messages.hpp"

namespace fl {

namespace {

wire::MetricKind::Combine to_wire(Combine how) {
  switch (how) {
    case Combine::mean: return wire::MetricKind::MEAN;
    case Combine::log_mean: return wire::MetricKind::LOG_MEAN;
    case Combine::none: break;
  }
  return wire::MetricKind::NONE;
}

Combine from_wire(wire::MetricKind::Combine how) {
  if (how == wire::MetricKind::MEAN) return Combine::mean;
  return how == wire::MetricKind::LOG_MEAN ? Combine::log_mean : Combine::none;
}

}  // namespace

void write_metric_kinds(std::span<const MetricKind> kinds, MetricKindFields& fields) {
  fields.Clear();
  for (const MetricKind& kind : kinds) {
    wire::MetricKind& field = *fields.Add();
    field.set_name(kind.name);
    field.set_lower_is_better(kind.lower_is_better);
    field.set_combine(to_wire(kind.combine));
  }
}

void write_metrics(std::span<const MetricValue> values, MetricFields& fields) {
  fields.Clear();
  for (const MetricValue& value : values) {
    wire::Metric& field = *fields.Add();
    field.set_name(value.name);
    field.set_value(value.value);
    field.set_weight(value.weight);
  }
}

std::vector<MetricKind> read_metric_kinds(const MetricKindFields& fields) {
  std::vector<MetricKind> kinds;
  for (const wire::MetricKind& field : fields)
    kinds.push_back({field.name(), field.lower_is_better(), from_wire(field.combine())});
  return kinds;
}

std::vector<MetricValue> read_metrics(const MetricFields& fields) {
  std::vector<MetricValue> values;
  for (const wire::Metric& field : fields)
    values.push_back({field.name(), field.value(), field.weight()});
  return values;
}

}  // namespace fl
