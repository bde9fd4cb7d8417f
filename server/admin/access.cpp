// SPDX-License-Identifier: Apache-2.0
#include "server/admin/access.hpp"

#include "shared/base/json.hpp"
#include "shared/net/server_address.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace fl {

namespace {

std::string_view field(const HttpRequest& request, http::field name) {
  const auto value = request[name];
  return {value.data(), value.size()};
}

std::string_view session_of(const HttpRequest& request) {
  return find_cookie(field(request, http::field::cookie), AdminSessions::cookie_name);
}

bool are_equal(std::string_view given, std::string_view wanted) {
  return equal_in_constant_time(bytes_of(given), bytes_of(wanted));
}

/// A proxy in front of us speaks HTTPS with the browser.
bool is_secure(const HttpRequest& request) {
  const auto protocol = request["X-Forwarded-Proto"];
  return std::string_view(protocol.data(), protocol.size()) == "https";
}

/// The host of "HOST", "HOST:PORT", "[IPv6]" or "[IPv6]:PORT".
std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

PageAnswer json_answer(const nlohmann::json& json, std::string headers = "") {
  return {.body = json_text(json) + "\n", .headers = std::move(headers)};
}

}  // namespace

bool is_host_allowed(std::string_view host, const std::vector<std::string>& names) {
  const std::string_view name = without_port(host);
  const auto is_it = [name](std::string_view allowed) {
    return std::ranges::equal(name, allowed, [](unsigned char a, unsigned char b) {
      return std::tolower(a) == std::tolower(b);
    });
  };
  return is_ip_address(name) || is_it("localhost") || std::ranges::any_of(names, is_it);
}

bool is_same_origin(const HttpRequest& request) {
  const std::string_view origin = field(request, http::field::origin);
  if (origin.empty()) return true;
  const auto scheme = origin.find("://");
  return scheme != origin.npos && origin.substr(scheme + 3) == field(request, http::field::host);
}

void AdminAccess::change(Options options) {
  auto changed = std::make_shared<const Options>(std::move(options));
  const std::lock_guard lock(mutex_);
  const bool is_another = changed->token != options_->token;
  options_ = std::move(changed);
  if (is_another) sessions_.close_all_of("");
}

std::shared_ptr<const AdminAccess::Options> AdminAccess::options() const {
  const std::lock_guard lock(mutex_);
  return options_;
}

std::optional<PageAnswer> AdminAccess::refuse(const HttpRequest& request) const {
  if (!is_host_allowed(field(request, http::field::host), options()->hosts)) {
    return refusal(421,
                   "the Host of this request is not one of this server's: use its IP address or "
                   "localhost, or start fl-server with --admin-host NAME");
  }
  if (request.method() == http::verb::get || request.method() == http::verb::head)
    return std::nullopt;
  if (request.method() != http::verb::post) return refusal(405, "there are GET, HEAD and POST");
  if (!is_same_origin(request)) return refusal(403, "another web page made this request");
  if (!field(request, http::field::content_type).starts_with("application/json"))
    return refusal(415, "the body must be JSON, with 'Content-Type: application/json'");
  return std::nullopt;
}

std::optional<Visitor> AdminAccess::visitor_of(const HttpRequest& request) const {
  if (const auto cookie = session_of(request); !cookie.empty()) {
    if (const auto session = sessions_.find(cookie))
      return Visitor{session->role, session->name, true};
  }
  const std::string_view given = field(request, http::field::authorization);
  const auto options = this->options();
  if (options->token.empty() || are_equal(given, "Bearer " + options->token)) return Visitor{};
  return std::nullopt;
}

PageAnswer AdminAccess::must_log_in() {
  return refusal(401,
                 "these pages need 'Authorization: Bearer TOKEN' with the token of "
                 "--admin-token-file, or a login at /");
}

PageAnswer AdminAccess::log_in(const HttpRequest& request) {
  const nlohmann::json json = parse_json(request.body());
  const bool has_token = json.is_object() && json.contains("token") && json["token"].is_string();
  if (!has_token) return refusal(400, "the body must be {\"token\": \"…\"}");
  const auto options = this->options();
  if (options->token.empty())
    return refusal(409, "there is nothing to log in to: the server has no --admin-token-file");
  if (!are_equal(json["token"].get_ref<const std::string&>(), options->token))
    return refusal(401, "this is not the token of --admin-token-file");
  const auto cookie = sessions_.open(AdminRole::viewer, "");
  if (!cookie) return refusal(503, cookie.error().message());
  return json_answer(
      {{"role", to_text(AdminRole::viewer)}, {"name", ""}},
      fmt::format("Set-Cookie: {}\r\n", session_cookie(*cookie, is_secure(request))));
}

PageAnswer AdminAccess::log_out(const HttpRequest& request) {
  sessions_.close(session_of(request));
  return json_answer(nlohmann::json::object(),
                     fmt::format("Set-Cookie: {}\r\n", session_cookie("", is_secure(request))));
}

PageAnswer AdminAccess::describe(const HttpRequest& request) const {
  const auto visitor = visitor_of(request);
  nlohmann::json json{{"needs_login", !options()->token.empty()}, {"role", nullptr}, {"name", ""}};
  json["is_logged_in"] = visitor && visitor->is_logged_in;
  if (visitor) {
    json["role"] = to_text(visitor->role);
    json["name"] = visitor->name;
  }
  return json_answer(json);
}

}  // namespace fl
