// SPDX-License-Identifier: Apache-2.0
#include "server/admin/request.hpp"

#include "server/admin/sessions.hpp"
#include "shared/base/json.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl::server {

std::string_view header_of(const HttpRequest& request, http::field name) {
  const auto value = request[name];
  return {value.data(), value.size()};
}

std::string_view header_of(const HttpRequest& request, std::string_view name) {
  const auto value = request[beast::string_view(name.data(), name.size())];
  return {value.data(), value.size()};
}

std::pair<std::string, std::string> address_of(const HttpRequest& request) {
  const std::string_view target(request.target().data(), request.target().size());
  const auto mark = std::min(target.find('?'), target.size());
  return {std::string(target.substr(0, mark)),
          std::string(target.substr(std::min(mark + 1, target.size())))};
}

std::string_view session_of(const HttpRequest& request) {
  return find_cookie(header_of(request, http::field::cookie), AdminSessions::cookie_name);
}

std::string set_session(const HttpRequest& request, std::string_view value) {
  // A proxy in front of us speaks HTTPS with the browser.
  const bool is_secure = header_of(request, "X-Forwarded-Proto") == "https";
  return fmt::format("Set-Cookie: {}\r\n", session_cookie(value, is_secure));
}

std::optional<std::string> login_token_of(const HttpRequest& request) {
  const nlohmann::json json = parse_json(request.body());
  const bool has_token = json.is_object() && json.contains("token") && json["token"].is_string();
  if (!has_token) return std::nullopt;
  return json["token"].get<std::string>();
}

std::optional<PageAnswer> refuse_foreign(const HttpRequest& request) {
  if (request.method() != http::verb::post) return refusal(405, "this page takes POST");
  const std::string_view site = header_of(request, "Sec-Fetch-Site");
  const std::string_view origin = header_of(request, http::field::origin);
  const auto scheme = origin.find("://");
  const bool is_ours =
      origin.empty() ||
      (scheme != origin.npos && origin.substr(scheme + 3) == header_of(request, http::field::host));
  if (!is_ours || (!site.empty() && site != "same-origin" && site != "none"))
    return refusal(403, "another web page made this request");
  if (!header_of(request, http::field::content_type).starts_with("application/json"))
    return refusal(415, "the body must be JSON, with 'Content-Type: application/json'");
  return std::nullopt;
}

}  // namespace fl::server
