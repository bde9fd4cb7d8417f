// SPDX-License-Identifier: Apache-2.0
#include "server/traces/otlp_answer.hpp"

#include "shared/base/json.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/printable.hpp"
#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace fl::server {
namespace {

constexpr std::size_t said_bytes_max = 300;  // Bytes of a collector's answer that the log shows.

/// Seconds, or a date (RFC 9110, section 10.2.3). Any other text counts as a missing header.
Duration parse_retry_after(const std::string& text, double unix_now) {
  double wait_s = 0;
  if (const auto number = number_in<std::uint64_t>(std::string_view(text))) {
    wait_s = static_cast<double>(*number);
  } else if (const auto date = parse_http_date(text)) {
    wait_s = *date - unix_now;
  }
  // A longer pause is longer than the exporter keeps trying.
  const double most = seconds(2 * limits::otlp_retry_max);
  const std::chrono::duration<double> wait(std::clamp(wait_s, 0.0, most));
  return std::chrono::duration_cast<Duration>(wait);
}

/// A 64-bit integer, which in this JSON is a string; some collectors write a number.
std::uint64_t integer_of(const nlohmann::json& value) {
  const auto number =
      value.is_string()
          ? number_in<std::uint64_t>(std::string_view(value.get_ref<const std::string&>()))
          : number_in<std::uint64_t>(value);
  return number.value_or(0);
}

std::string text_in(const nlohmann::json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

void read_partial_success(const std::string& body, OtlpVerdict& verdict) {
  const nlohmann::json told = parse_json(body);
  const auto partial = told.is_object() ? told.find("partialSuccess") : told.end();
  if (partial == told.end() || !partial->is_object()) return;
  if (const auto rejected = partial->find("rejectedSpans"); rejected != partial->end())
    verdict.spans_rejected = integer_of(*rejected);
  verdict.text = printable(text_in(*partial, "errorMessage"), said_bytes_max);
}

}  // namespace

OtlpVerdict judge_answer(const HttpClient::Answer& answer, double unix_now) {
  OtlpVerdict verdict;
  if (answer.status >= 200 && answer.status < 300) {
    verdict.kind = OtlpVerdict::Kind::taken;
    read_partial_success(answer.body, verdict);
    return verdict;
  }
  const unsigned status = answer.status;
  const bool will_pass = status == 429 || status == 502 || status == 503 || status == 504;
  verdict.kind = will_pass ? OtlpVerdict::Kind::later : OtlpVerdict::Kind::refused;
  if (will_pass) verdict.pause = parse_retry_after(answer.retry_after, unix_now);
  // The body is a google.rpc.Status, or any text that a proxy writes.
  std::string said = text_in(parse_json(answer.body), "message");
  if (said.empty()) said = answer.body;
  verdict.text = fmt::format("HTTP status {}{}{}", status, said.empty() ? "" : ": ",
                             printable(said, said_bytes_max));
  return verdict;
}

}  // namespace fl::server
