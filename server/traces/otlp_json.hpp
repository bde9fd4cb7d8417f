// SPDX-License-Identifier: Apache-2.0
// Spans as the body of a request to an OpenTelemetry collector: OTLP's ExportTraceServiceRequest in
// the JSON of its specification (OTLP 1.9, "JSON Protobuf Encoding"). There ids are hexadecimal,
// 64-bit integers are strings, enumerations are numbers, and names are in lowerCamelCase.
#pragma once

#include "server/traces/span.hpp"

#include <span>
#include <string>

namespace fl::server {

/// `resource`: attributes that tell this process from others. Values of an attribute that are not
/// finite are left out.
[[nodiscard]] std::string otlp_json(const Attributes& resource, std::span<const Span> spans);

}  // namespace fl::server
