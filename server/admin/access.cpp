// SPDX-License-Identifier: Apache-2.0
#include "server/admin/access.hpp"

#include "server/admin/request.hpp"
#include "shared/base/io/text_of_bytes.hpp"
#include "shared/base/json.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/net/address_text.hpp"
#include "shared/net/server_address.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <span>
#include <utility>

namespace fl::server {

namespace {

bool is_token_of_pages(std::string_view given, const AdminAccess::Options& options) {
  return !options.token.empty() && equal_in_constant_time(bytes_of(given), bytes_of(options.token));
}

Visitor holder_of_pages_token() {
  Visitor visitor;
  visitor.is_known = true;
  return visitor;
}

/// The token of the Authorization header.
std::optional<std::string> bearer_of(const HttpRequest& request) {
  constexpr std::string_view scheme = "Bearer ";
  const std::string_view given = header_of(request, http::field::authorization);
  if (!given.starts_with(scheme)) return std::nullopt;
  return std::string(given.substr(scheme.size()));
}

/// The host of "HOST", "HOST:PORT", "[IPv6]" or "[IPv6]:PORT".
std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

}  // namespace

Caller caller_of(const PlainSocket& socket) {
  beast::error_code gone;
  const auto peer = socket.remote_endpoint(gone);
  if (gone) return {0, "an address that has gone"};
  const sockaddr& address = *peer.data();
  return {stranger_address(address), host_text(address)};
}

std::string name_of(const Visitor& visitor) {
  if (!visitor.operator_name.empty()) return fmt::format("operator '{}'", visitor.operator_name);
  return visitor.is_known ? "somebody with the pages' token" : std::string(Audit::a_stranger);
}

PlaceHolder holder_of(const std::optional<Visitor>& visitor, const Caller& caller) {
  const bool is_known = visitor && visitor->is_known;
  if (is_known && !visitor->operator_name.empty())
    return {fmt::format("operator {}", visitor->operator_name), true, true};
  return {fmt::format("{} {}", is_known ? "token" : "address", caller.machine), is_known, false};
}

std::string operator_token_hash(std::string_view token) {
  const Sha256 digest = sha256(bytes_of(token));
  return to_hex(std::as_bytes(std::span(digest)));
}

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
  const MutexLock lock(mutex_);
  const bool is_another = changed->token != options_->token;
  options_ = std::move(changed);
  if (is_another) sessions_.close_all_of("");
  return is_another;
}

Awaitable<void> AdminAccess::note_another_token() {
  auto note = [](Store& store) {
    return store.audit().add(AuditKind::operators, "",
                             "the flags were read again (SIGHUP): the admin pages have another "
                             "token, and logins with the one before have ended",
                             Audit::the_server);
  };
  const auto noted = co_await store_.run(std::move(note));
  if (!noted)
    log_warn("can't write another token of the pages into the audit: {}", noted.error().message());
}

std::shared_ptr<const AdminAccess::Options> AdminAccess::options() const {
  const MutexLock lock(mutex_);
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

Awaitable<Result<std::optional<Visitor>>> AdminAccess::find_operator(std::string token_hash) {
  auto look = [token_hash](Store& store) -> Result<std::optional<Visitor>> {
    FL_TRY(const auto found, store.operators().with_token(token_hash));
    if (!found) return std::optional<Visitor>();
    const auto role = parse_admin_role(found->role);
    if (!role) {
      return Error(Errc::corrupt, fmt::format("operator '{}' has the role '{}', which is unknown",
                                              found->name, found->role));
    }
    return std::optional(Visitor{*role, found->name, false, true});
  };
  auto found = co_await store_.run(std::move(look));
  if (found && !*found) sessions_.close_all_of(token_hash);  // The token was revoked.
  if (!found) log_warn("admin pages: operators can't be read: {}", found.error().message());
  co_return found;
}

Awaitable<AdminAccess::Found> AdminAccess::find_visitor(const HttpRequest& request) {
  const auto options = this->options();
  Found found;
  if (const auto token = bearer_of(request)) {
    if (is_token_of_pages(*token, *options)) {
      found.visitor = holder_of_pages_token();
      co_return found;
    }
    const auto known = co_await find_operator(operator_token_hash(*token));
    if (known) found.visitor = *known;
    if (found.visitor) co_return found;
    found.has_wrong_token = known.has_value();
  }
  // A proxy may have put a token of its own before the cookie.
  if (const auto session = sessions_.find(session_of(request))) {
    found.visitor = holder_of_pages_token();
    if (!session->key.empty()) {
      const auto known = co_await find_operator(session->key);
      found.visitor = known ? *known : std::nullopt;
    }
    if (found.visitor) {
      found.visitor->is_logged_in = true;
      found.has_wrong_token = false;
      co_return found;
    }
  }
  if (options->token.empty()) found.visitor = Visitor();
  co_return found;
}

Awaitable<std::optional<Visitor>> AdminAccess::visitor_of(const HttpRequest& request,
                                                          Caller caller) {
  const Found found = co_await find_visitor(request);
  if (found.has_wrong_token) co_await note_wrong_token(std::move(caller), "a request");
  co_return found.visitor;
}

Awaitable<bool> AdminAccess::is_still_let_in(const HttpRequest& request) {
  const Found found = co_await find_visitor(request);
  co_return found.visitor.has_value();
}

PageAnswer AdminAccess::must_log_in() {
  return refusal(401,
                 "these pages need 'Authorization: Bearer TOKEN' with the token of "
                 "--admin-token-file or of an operator, or a login at /");
}

Awaitable<bool> AdminAccess::note_wrong_token(Caller caller, std::string what) {
  if (!wrong_tokens_.passes(fmt::format("{} from {}", what, caller.machine))) co_return false;
  auto note = [text = fmt::format("{} with a token of no operator, from {}", what, caller.address)](
                  Store& store) { return store.audit().add(AuditKind::refusal, "", text); };
  const auto noted = co_await store_.run(std::move(note));
  if (!noted) log_warn("can't write a wrong token into the audit: {}", noted.error().message());
  co_return true;
}

Awaitable<Result<void>> AdminAccess::count_left_out() {
  for (const auto& of : wrong_tokens_.take_left_out())
    wrong_left_out_ += static_cast<std::uint64_t>(of.lines);
  const TimePoint now = Clock::now();
  const std::uint64_t told = now < next_count_at_ ? 0 : wrong_left_out_;
  auto add_counts = [told](Store& store) -> Result<void> {
    FL_CHECK(store.audit().add_counts());
    if (told == 0) return {};
    return store.audit().add(AuditKind::repeats, "", fmt::format("wrong tokens: {} more", told),
                             Audit::the_server);
  };
  const auto counted = co_await store_.run(std::move(add_counts));
  if (counted && told > 0) {
    wrong_left_out_ -= told;
    next_count_at_ = now + limits::login_window;
  }
  co_return counted;
}

/// Writes the audit's row first: nobody is let in without a row.
Awaitable<PageAnswer> AdminAccess::open_session(const HttpRequest& request, std::string key,
                                                Visitor visitor, Caller caller) {
  auto note = [who = name_of(visitor), text = fmt::format("logs in, from {}", caller.address)](
                  Store& store) { return store.audit().add(AuditKind::login, "", text, who); };
  const auto noted = co_await store_.run(std::move(note));
  if (!noted) co_return refusal(503, noted.error().message());
  const auto cookie = sessions_.open(std::move(key));
  if (!cookie) co_return refusal(503, cookie.error().message());
  co_return json_answer({{"role", to_text(visitor.role)}, {"name", visitor.operator_name}},
                        set_session(request, *cookie));
}

Awaitable<PageAnswer> AdminAccess::log_in(const HttpRequest& request, Caller caller) {
  const auto token = login_token_of(request);
  if (!token) co_return refusal(400, "the body must be {\"token\": \"…\"}");
  std::string key;
  std::optional<Visitor> visitor;
  if (is_token_of_pages(*token, *options())) {
    visitor = holder_of_pages_token();
  } else {
    key = operator_token_hash(*token);
    const auto found = co_await find_operator(key);
    if (!found) co_return refusal(503, found.error().message());
    visitor = *found;
  }
  if (visitor) co_return co_await open_session(request, key, *visitor, caller);
  if (co_await note_wrong_token(caller, "a login")) {
    co_return refusal(401,
                      "this is neither the token of an operator, which 'fl-server operator add' "
                      "makes, nor that of --admin-token-file");
  }
  co_return refusal(429, fmt::format("this is a wrong token, and more than {} have come from {} "
                                     "within a minute; a right one is let in at any time",
                                     limits::wrong_tokens_max, caller.address));
}

PageAnswer AdminAccess::log_out(const HttpRequest& request) {
  sessions_.close(session_of(request));
  return json_answer(nlohmann::json::object(), set_session(request, ""));
}

Awaitable<PageAnswer> AdminAccess::describe(const HttpRequest& request, Caller caller) {
  const auto visitor = co_await visitor_of(request, std::move(caller));
  nlohmann::json json{{"is_logged_in", false}, {"role", nullptr}, {"name", ""}};
  if (visitor) {
    json["is_logged_in"] = visitor->is_logged_in;
    json["role"] = to_text(visitor->role);
    json["name"] = visitor->operator_name;
  }
  co_return json_answer(json);
}

}  // namespace fl::server
