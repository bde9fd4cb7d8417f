// SPDX-License-Identifier: Apache-2.0
// What a collector's answer to a request means (OTLP 1.9, "OTLP/HTTP response"). Pure functions.
#pragma once

#include "server/traces/http_client.hpp"
#include "shared/base/async/clock.hpp"

#include <cstdint>
#include <string>

namespace fl::server {

struct OtlpVerdict {
  enum class Kind {
    taken,    // Nothing is sent again, even if the collector has rejected some of the spans.
    later,    // Try again, after `pause` at the earliest.
    refused,  // Trying again would not help.
  };
  Kind kind = Kind::refused;
  Duration pause = Duration::zero();  // The pause that the collector has asked for; 0: none.
  std::uint64_t spans_rejected = 0;
  std::string text;  // The collector's answer, for the log; "": it said nothing.
};

/// `unix_now`: for a Retry-After that is a date.
[[nodiscard]] OtlpVerdict judge_answer(const HttpClient::Answer& answer, double unix_now);

}  // namespace fl::server
