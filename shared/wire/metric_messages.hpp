// SPDX-License-Identifier: Apache-2.0
// Metrics (shared/params/metric.hpp) as fields of messages, both ways. They check nothing:
// check_metrics() and check_metric_value() do. Pure functions; any thread.
#pragma once

#include "proto/wire.pb.h"
#include "shared/params/metric.hpp"

#include <span>
#include <vector>

namespace fl {

using MetricKindFields = google::protobuf::RepeatedPtrField<wire::MetricKind>;
using MetricFields = google::protobuf::RepeatedPtrField<wire::Metric>;

void write_metric_kinds(std::span<const MetricKind> kinds, MetricKindFields& fields);
void write_metrics(std::span<const MetricValue> values, MetricFields& fields);
/// Reads the metrics. A way of combining that this program does not know is read as `none`.
[[nodiscard]] std::vector<MetricKind> read_metric_kinds(const MetricKindFields& fields);
[[nodiscard]] std::vector<MetricValue> read_metrics(const MetricFields& fields);

}  // namespace fl
