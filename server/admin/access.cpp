// SPDX-License-Identifier: Apache-2.0
#include "server/admin/access.hpp"

#include "server/admin/request.hpp"
#include "shared/base/json.hpp"
#include "shared/net/server_address.hpp"

#include <algorithm>
#include <cctype>

namespace fl {

namespace {

bool are_equal(std::string_view given, std::string_view wanted) {
  return equal_in_constant_time(bytes_of(given), bytes_of(wanted));
}

/// The host of "HOST", "HOST:PORT", "[IPv6]" or "[IPv6]:PORT".
std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
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

bool AdminAccess::change(Options options) {
  auto changed = std::make_shared<const Options>(std::move(options));
  const std::lock_guard lock(mutex_);
  const bool is_another = changed->token != options_->token;
  options_ = std::move(changed);
  if (is_another) sessions_.close_all_of("");
  return is_another;
}

std::shared_ptr<const AdminAccess::Options> AdminAccess::options() const {
  const std::lock_guard lock(mutex_);
  return options_;
}

std::optional<PageAnswer> AdminAccess::refuse(const HttpRequest& request) const {
  if (!is_host_allowed(header_of(request, http::field::host), options()->hosts)) {
    return refusal(421,
                   "the Host of this request is not one of this server's: use its IP address or "
                   "localhost, or start fl-server with --admin-host NAME");
  }
  if (request.method() == http::verb::get || request.method() == http::verb::head)
    return std::nullopt;
  if (request.method() != http::verb::post) return refusal(405, "there are GET, HEAD and POST");
  return refuse_foreign(request);
}

std::optional<Visitor> AdminAccess::visitor_of(const HttpRequest& request) const {
  if (const auto cookie = session_of(request); !cookie.empty()) {
    if (const auto session = sessions_.find(cookie))
      return Visitor{session->role, session->name, true};
  }
  const std::string_view given = header_of(request, http::field::authorization);
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
  const auto token = login_token_of(request);
  if (!token) return refusal(400, "the body must be {\"token\": \"…\"}");
  const auto options = this->options();
  if (options->token.empty())
    return refusal(409, "there is nothing to log in to: the server has no --admin-token-file");
  if (!are_equal(*token, options->token))
    return refusal(401, "this is not the token of --admin-token-file");
  const auto cookie = sessions_.open(AdminRole::viewer, "");
  if (!cookie) return refusal(503, cookie.error().message());
  return json_answer({{"role", to_text(AdminRole::viewer)}, {"name", ""}},
                     set_session(request, *cookie));
}

PageAnswer AdminAccess::log_out(const HttpRequest& request) {
  sessions_.close(session_of(request));
  return json_answer(nlohmann::json::object(), set_session(request, ""));
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
