// SPDX-License-Identifier: Apache-2.0
#include "server/admin/answer.hpp"

#include "shared/net/http.hpp"

#include <boost/beast/http/status.hpp>

#include <fmt/format.h>

#include <utility>

namespace fl::server {

namespace {

/// Headers that limit what a browser does with our answers. Pages have scripts, styles and pictures
/// from here only, and none inside their text.
constexpr std::string_view safety =
    "Content-Security-Policy: default-src 'self'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'; object-src 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n";

std::string begin_of_head(unsigned status, std::string_view type) {
  return fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\nContent-Type: {}\r\n{}Connection: close\r\n",
                     status, http::obsolete_reason(static_cast<http::status>(status)),
                     http_date(Clock::unix_seconds()), type, safety);
}

}  // namespace

PageAnswer json_answer(const nlohmann::json& json, std::string headers) {
  return {.body = json_text(json) + "\n", .headers = std::move(headers)};
}

PageAnswer refusal(unsigned status, std::string_view why) {
  PageAnswer made = json_answer({{"error", std::string(why)}});
  made.status = status;
  return made;
}

PageAnswer answer_of(Result<std::string> text) {
  if (text) return {.body = std::move(*text)};
  const Errc code = text.error().code();
  const unsigned status = code == Errc::not_found ? 404 : code == Errc::invalid_input ? 400 : 503;
  return refusal(status, text.error().message());
}

std::string answer_head(unsigned status, std::string_view type, std::string_view headers,
                        std::uint64_t body_bytes) {
  const bool has_cache = headers.find("Cache-Control:") != headers.npos;
  return fmt::format("{}{}{}Content-Length: {}\r\n\r\n", begin_of_head(status, type), headers,
                     has_cache ? "" : "Cache-Control: no-store\r\n", body_bytes);
}

std::string stream_head(std::string_view type) {
  return begin_of_head(200, type) + "Cache-Control: no-store\r\n\r\n";
}

}  // namespace fl::server
