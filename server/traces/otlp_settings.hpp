// SPDX-License-Identifier: Apache-2.0
// Where traces go, and how: --otlp-endpoint, and the variables that all programs with OpenTelemetry
// follow (its specification, "OTLP exporter configuration" and "Environment variables").
#pragma once

#include "server/traces/http_client.hpp"
#include "server/traces/span.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/environment.hpp"
#include "shared/base/limits.hpp"

#include <optional>
#include <string>

namespace fl::server {

struct OtlpSettings {
  HttpUrl url;
  std::string
      source;  // Where the address comes from: "--otlp-endpoint", or the name of a variable.
  HttpHeaders headers;
  std::string authority_file;  // For HttpClient::Options.
  Duration timeout = limits::otlp_timeout;
  Attributes resource;  // service.name and service.version, and what the user adds.
  std::string advice;   // Advice about another setting; "": none.
};

/// `flag` is the value of --otlp-endpoint: a URL, "off", or "" to follow the environment. A flag
/// goes before all variables. None: no traces are sent. Errors are invalid_input, name the flag or
/// the variable, and don't repeat its value, because it may have a secret.
[[nodiscard]] Result<std::optional<OtlpSettings>> read_otlp_settings(
    const std::string& flag, const Environment& environment);

}  // namespace fl::server
