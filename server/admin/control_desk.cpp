// SPDX-License-Identifier: Apache-2.0
#include "server/admin/control_desk.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fl {

namespace {

constexpr std::string_view control_prefix = "/api/control/";

std::string_view field_of(const HttpRequest& request, std::string_view name) {
  const auto value = request[beast::string_view(name.data(), name.size())];
  return {value.data(), value.size()};
}

std::string_view path_of(const HttpRequest& request) {
  const std::string_view target(request.target().data(), request.target().size());
  return target.substr(0, target.find('?'));
}

ControlAnswer json_of(const nlohmann::json& json, unsigned status = 200) {
  return {status, json_text(json) + "\n", ""};
}

ControlAnswer no(unsigned status, std::string_view why) {
  return json_of({{"error", std::string(why)}}, status);
}

unsigned status_of(Errc code) {
  switch (code) {
    case Errc::not_found: return 404;
    case Errc::conflict: return 409;
    case Errc::invalid_input:
    case Errc::corrupt:
    case Errc::too_large: return 400;
    default: return 503;
  }
}

/// A proxy in front of us speaks HTTPS with the browser.
bool came_over_https(const HttpRequest& request) {
  return field_of(request, "X-Forwarded-Proto") == "https";
}

std::string set_cookie(std::string_view value, const HttpRequest& request) {
  return fmt::format("Set-Cookie: {}\r\n", session_cookie(value, came_over_https(request)));
}

std::string_view cookie_of(const HttpRequest& request) {
  return find_cookie(field_of(request, "Cookie"), AdminSessions::cookie_name);
}

std::optional<std::string> bearer_of(const HttpRequest& request) {
  constexpr std::string_view scheme = "Bearer ";
  const std::string_view given = field_of(request, "Authorization");
  if (!given.starts_with(scheme)) return std::nullopt;
  return std::string(given.substr(scheme.size()));
}

nlohmann::json who_json(const Operator& who) {
  return {{"name", who.name}, {"role", to_text(who.role)}};
}

}  // namespace

std::optional<ControlAnswer> refuse_foreign(const HttpRequest& request) {
  if (request.method() != http::verb::post) return no(405, "this page takes POST");
  const std::string_view site = field_of(request, "Sec-Fetch-Site");
  const std::string_view origin = field_of(request, "Origin");
  const auto scheme = origin.find("://");
  const bool is_ours = origin.empty() || (scheme != origin.npos &&
                                          origin.substr(scheme + 3) == field_of(request, "Host"));
  if (!is_ours || (!site.empty() && site != "same-origin" && site != "none"))
    return no(403, "another web page made this request");
  if (!field_of(request, "Content-Type").starts_with("application/json"))
    return no(415, "the body must be JSON, with 'Content-Type: application/json'");
  return std::nullopt;
}

std::string operator_token_hash(std::string_view token) {
  const Sha256 digest = sha256(bytes_of(token));
  return to_hex(std::as_bytes(std::span(digest)));
}

Result<std::unique_ptr<ControlDesk>> ControlDesk::open(const std::filesystem::path& history,
                                                       std::vector<ControlAction> actions) {
  Store::Options options;
  options.path = history;
  FL_TRY(auto store, Store::open(options));
  return std::unique_ptr<ControlDesk>(new ControlDesk(std::move(store), std::move(actions)));
}

bool ControlDesk::has(std::string_view path) {
  return path.starts_with(control_prefix) || path == "/api/login" || path == "/api/logout" ||
         path == "/api/operator";
}

/// On the thread.
Result<std::optional<Operator>> ControlDesk::look_up(const std::string& token_hash) {
  FL_TRY(const auto found, store_->operator_with(token_hash));
  if (!found) return std::optional<Operator>();
  const auto role = parse_admin_role(found->role);
  if (!role) return Error(Errc::corrupt, "an operator's role is unknown");
  return std::optional(Operator{found->name, *role, false});
}

Awaitable<std::optional<Operator>> ControlDesk::operator_of(const HttpRequest& request) {
  const auto token = bearer_of(request);
  const auto session = sessions_.find(cookie_of(request));
  if (!token && !session) co_return std::nullopt;
  // A session has its token's hash for a name: it ends with that token, also if another operator
  // gets the name.
  const std::string hash = token ? operator_token_hash(*token) : session->name;
  auto look = [this, hash, is_by_cookie = !token]() -> Result<std::optional<Operator>> {
    FL_TRY(auto found, look_up(hash));
    if (found) found->is_by_cookie = is_by_cookie;
    if (!found && is_by_cookie) sessions_.close_all_of(hash);
    return found;
  };
  const auto found = co_await thread_.run(std::move(look));
  if (!found) {
    log_warn("admin pages: operators can't be read: {}", found.error().message());
    co_return std::nullopt;
  }
  co_return *found;
}

/// Whether another login may be tried now. A session or a token in a header needs none: strangers
/// can't lock operators out of their scripts.
bool ControlDesk::may_try() {
  if (Clock::now() - failures_since_ >= limits::login_window) failures_ = 0;
  return failures_ < limits::logins_failed_max;
}

Awaitable<bool> ControlDesk::is_locked() {
  auto look = [this] { return !may_try(); };
  co_return co_await thread_.run(std::move(look));
}

void ControlDesk::note_failure() {
  if (failures_++ == 0) failures_since_ = Clock::now();
  auto noted = store_->add_audit(AuditKind::refusal, "", "a login with a token of no operator");
  if (!noted) log_warn("admin pages: the audit: {}", noted.error().message());
}

/// On the thread.
ControlAnswer ControlDesk::log_in(const HttpRequest& request) {
  const auto json = parse_json(request.body());
  const bool has_token = json.is_object() && json.contains("token") && json["token"].is_string();
  if (!has_token) return no(400, "the body must be {\"token\": \"...\"}");
  if (!may_try()) {
    return no(429, fmt::format("{} logins have failed within a minute: try again in one",
                               limits::logins_failed_max));
  }
  const std::string hash = operator_token_hash(json["token"].get<std::string>());
  const auto who = look_up(hash);
  if (!who) return no(503, who.error().message());
  if (!*who) {
    note_failure();
    return no(401, "this is not the token of an operator: 'fl-server operator add' makes one");
  }
  const auto cookie = sessions_.open((*who)->role, hash);
  if (!cookie) return no(503, cookie.error().message());
  ControlAnswer answer = json_of(who_json(**who));
  answer.headers = set_cookie(*cookie, request);
  return answer;
}

/// On the thread. The row of the audit comes first: nothing is done that it does not have.
ControlAnswer ControlDesk::act(const ControlAction& action, const Operator& who,
                               const std::string& body) {
  const auto json = parse_json(body);
  if (!json.is_object()) return no(400, "the body must be a JSON object");
  const std::string by = fmt::format("operator '{}'", who.name);
  const std::string text = printable(action.text(json), limits::control_text_bytes_max);
  const std::string client = printable(action.client(json), limits::control_text_bytes_max);
  const auto noted = store_->add_control(by, client, text);
  if (!noted) return no(503, noted.error().message());
  const auto done = action.run(*store_, json, by);
  if (done) return json_of(*done);
  const auto failed = store_->add_control(
      by, client, fmt::format("'{}' failed: {}", action.name, done.error().message()));
  if (!failed) log_warn("admin pages: the audit: {}", failed.error().message());
  return no(status_of(done.error().code()), done.error().message());
}

Awaitable<ControlAnswer> ControlDesk::answer(HttpRequest request) {
  const std::string path(path_of(request));
  if (path == "/api/operator") {
    const auto who = co_await operator_of(request);
    if (!who) co_return no(401, "log in with the token of an operator");
    co_return json_of(who_json(*who));
  }
  if (auto refused = refuse_foreign(request)) co_return std::move(*refused);
  if (path == "/api/login") {
    auto try_it = [this, &request] { return Result<ControlAnswer>(log_in(request)); };
    auto made = co_await thread_.run(std::move(try_it));
    co_return std::move(*made);
  }
  if (path == "/api/logout") {
    sessions_.close(cookie_of(request));
    ControlAnswer made = json_of(nlohmann::json::object());
    made.headers = set_cookie("", request);
    co_return made;
  }
  const auto action =
      std::ranges::find(actions_, path.substr(control_prefix.size()), &ControlAction::name);
  if (action == actions_.end()) co_return no(404, "there is no such action");
  const auto who = co_await operator_of(request);
  if (!who) co_return no(401, "log in with the token of an operator");
  if (who->role < action->role) {
    co_return no(403, fmt::format("this needs the role {}, and '{}' has the role {}",
                                  to_text(action->role), who->name, to_text(who->role)));
  }
  auto do_it = [this, &action, &who, &request] {
    return Result<ControlAnswer>(act(*action, *who, request.body()));
  };
  auto made = co_await thread_.run(std::move(do_it));
  co_return std::move(*made);
}

}  // namespace fl
