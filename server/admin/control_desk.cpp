// SPDX-License-Identifier: Apache-2.0
#include "server/admin/control_desk.hpp"

#include "server/admin/request.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fl {

namespace {

constexpr std::string_view control_prefix = "/api/control/";

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

std::optional<std::string> bearer_of(const HttpRequest& request) {
  constexpr std::string_view scheme = "Bearer ";
  const std::string_view given = header_of(request, http::field::authorization);
  if (!given.starts_with(scheme)) return std::nullopt;
  return std::string(given.substr(scheme.size()));
}

nlohmann::json who_json(const Operator& who) {
  return {{"name", who.name}, {"role", to_text(who.role)}};
}

}  // namespace

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
  const auto session = sessions_.find(session_of(request));
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
PageAnswer ControlDesk::log_in(const HttpRequest& request) {
  const auto token = login_token_of(request);
  if (!token) return refusal(400, "the body must be {\"token\": \"...\"}");
  if (!may_try()) {
    return refusal(429, fmt::format("{} logins have failed within a minute: try again in one",
                                    limits::logins_failed_max));
  }
  const std::string hash = operator_token_hash(*token);
  const auto who = look_up(hash);
  if (!who) return refusal(503, who.error().message());
  if (!*who) {
    note_failure();
    return refusal(401, "this is not the token of an operator: 'fl-server operator add' makes one");
  }
  const auto cookie = sessions_.open((*who)->role, hash);
  if (!cookie) return refusal(503, cookie.error().message());
  return json_answer(who_json(**who), set_session(request, *cookie));
}

/// On the thread. The row of the audit comes first: nothing is done that it does not have.
PageAnswer ControlDesk::act(const ControlAction& action, const Operator& who,
                            const std::string& body) {
  const auto json = parse_json(body);
  if (!json.is_object()) return refusal(400, "the body must be a JSON object");
  const std::string by = fmt::format("operator '{}'", who.name);
  const std::string text = printable(action.text(json), limits::control_text_bytes_max);
  const std::string client = printable(action.client(json), limits::control_text_bytes_max);
  const auto noted = store_->add_control(by, client, text);
  if (!noted) return refusal(503, noted.error().message());
  const auto done = action.run(*store_, json, by);
  if (done) return json_answer(*done);
  const auto failed = store_->add_control(
      by, client, fmt::format("'{}' failed: {}", action.name, done.error().message()));
  if (!failed) log_warn("admin pages: the audit: {}", failed.error().message());
  return refusal(status_of(done.error().code()), done.error().message());
}

Awaitable<PageAnswer> ControlDesk::answer(HttpRequest request) {
  const std::string path = address_of(request).first;
  if (path == "/api/operator") {
    const auto who = co_await operator_of(request);
    if (!who) co_return refusal(401, "log in with the token of an operator");
    co_return json_answer(who_json(*who));
  }
  if (auto refused = refuse_foreign(request)) co_return std::move(*refused);
  if (path == "/api/login") {
    auto try_it = [this, &request] { return Result<PageAnswer>(log_in(request)); };
    auto made = co_await thread_.run(std::move(try_it));
    co_return std::move(*made);
  }
  if (path == "/api/logout") {
    sessions_.close(session_of(request));
    PageAnswer made = json_answer(nlohmann::json::object(), set_session(request, ""));
    co_return made;
  }
  const auto action =
      std::ranges::find(actions_, path.substr(control_prefix.size()), &ControlAction::name);
  if (action == actions_.end()) co_return refusal(404, "there is no such action");
  const auto who = co_await operator_of(request);
  if (!who) co_return refusal(401, "log in with the token of an operator");
  if (who->role < action->role) {
    co_return refusal(403, fmt::format("this needs the role {}, and '{}' has the role {}",
                                       to_text(action->role), who->name, to_text(who->role)));
  }
  auto do_it = [this, &action, &who, &request] {
    return Result<PageAnswer>(act(*action, *who, request.body()));
  };
  auto made = co_await thread_.run(std::move(do_it));
  co_return std::move(*made);
}

}  // namespace fl
