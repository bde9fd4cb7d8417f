// SPDX-License-Identifier: Apache-2.0
#include "server/traces/otlp_json.hpp"

#include "shared/base/json.hpp"
#include "shared/base/version.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fl::server {
namespace {

using nlohmann::json;

constexpr int kind_internal = 1;  // SPAN_KIND_INTERNAL.
constexpr int status_error = 2;   // STATUS_CODE_ERROR.

/// The value as an AnyValue; null if it has none.
json value_json(const Attribute& attribute) {
  if (const auto* text = std::get_if<std::string>(&attribute.value))
    return {{"stringValue", *text}};
  if (const auto* number = std::get_if<std::int64_t>(&attribute.value))
    return {{"intValue", std::to_string(*number)}};
  const double value = std::get<double>(attribute.value);
  return std::isfinite(value) ? json{{"doubleValue", value}} : json();
}

json attributes_json(const Attributes& attributes) {
  json list = json::array();
  for (const Attribute& attribute : attributes) {
    json value = value_json(attribute);
    if (!value.is_null()) list.push_back({{"key", attribute.key}, {"value", std::move(value)}});
  }
  return list;
}

/// Nanoseconds since 1970, as the string of a 64-bit integer.
std::string nanoseconds(double unix_seconds) {
  constexpr double latest = 9e9;  // In the year 2255; 64 bits are enough for twice as long.
  const double within = std::clamp(std::isfinite(unix_seconds) ? unix_seconds : 0.0, 0.0, latest);
  // Whole seconds and the rest apart, as their product needs more bits than a double has.
  const double whole = std::floor(within);
  const auto rest = static_cast<std::uint64_t>(std::llround((within - whole) * 1e9));
  return std::to_string(static_cast<std::uint64_t>(whole) * 1'000'000'000 + rest);
}

json span_json(const Span& span) {
  json made{{"traceId", span.trace.hex()},
            {"spanId", fmt::format("{:016x}", span.id)},
            {"name", span.name},
            {"kind", kind_internal},
            {"startTimeUnixNano", nanoseconds(span.begin)},
            {"endTimeUnixNano", nanoseconds(std::max(span.begin, span.end))},
            {"attributes", attributes_json(span.attributes)}};
  if (span.parent != 0) made["parentSpanId"] = fmt::format("{:016x}", span.parent);
  if (span.has_failed) made["status"] = {{"code", status_error}, {"message", span.failure}};
  return made;
}

}  // namespace

std::string otlp_json(const Attributes& resource, std::span<const Span> spans) {
  json list = json::array();
  for (const Span& span : spans) list.push_back(span_json(span));
  json of_scope{{"scope", {{"name", "tributary"}, {"version", software_version}}},
                {"spans", std::move(list)}};
  json of_resource{{"resource", {{"attributes", attributes_json(resource)}}},
                   {"scopeSpans", json::array()}};
  of_resource["scopeSpans"].push_back(std::move(of_scope));
  json request = json::object();
  request["resourceSpans"].push_back(std::move(of_resource));
  return json_text(request);
}

}  // namespace fl::server
