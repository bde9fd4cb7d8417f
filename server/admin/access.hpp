// SPDX-License-Identifier: Apache-2.0
// AdminAccess decides who may see the admin pages and who asks. The Host of a request must be
// ours. A request then presents the pages' token, or that of an operator (fl-server operator add),
// or the cookie of a login with one of them. Each request looks its operator up: whoever is revoked
// is out at once. A right token is let in, whatever wrong ones come beside it. Any thread.
#pragma once

#include "server/admin/answer.hpp"
#include "server/admin/control_store.hpp"
#include "server/admin/sessions.hpp"
#include "server/admin/visitor_places.hpp"
#include "shared/base/async/mutex.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/line_limit.hpp"
#include "shared/net/http.hpp"
#include "shared/net/strangers.hpp"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fl::server {

/// The person or program that makes a request.
struct Visitor {
  AdminRole role = AdminRole::viewer;
  std::string operator_name;  // "": not an operator, but somebody who may see the pages.
  bool is_logged_in = false;  // By a cookie, which a browser sends with every request.
  bool is_known = false;      // The request has shown a token: an operator's or the pages'.
};
/// The address that a request comes from.
struct Caller {
  Address machine = 0;
  std::string address;  // The address as text: "192.0.2.7".
};
[[nodiscard]] Caller caller_of(const PlainSocket& socket);
/// The one who makes a request, as the audit names it: "operator 'eve'", "somebody with the pages'
/// token" or "a stranger".
[[nodiscard]] std::string name_of(const Visitor& visitor);
/// The holder that a request's place is counted for.
[[nodiscard]] PlaceHolder holder_of(const std::optional<Visitor>& visitor, const Caller& caller);

class AdminAccess {
 public:
  struct Options {
    /// Names by which browsers and scrapers may reach the pages, beside IP addresses and localhost.
    std::vector<std::string> hosts;
    std::string token;  // "": everybody who reaches the pages may see them.
  };
  /// `store` must outlive this.
  AdminAccess(Options options, ControlStore& store)
      : store_(store), options_(std::make_shared<const Options>(std::move(options))) {}
  /// Sets who may see the pages from now on. If the pages' token changes, logins with the old one
  /// end. Returns whether it has changed.
  bool change(Options options);
  /// Writes into the audit that the pages' token has changed.
  Awaitable<void> note_another_token();

  /// An answer if the request may get no other: a foreign host, or a body without a page that
  /// could have made it.
  [[nodiscard]] std::optional<PageAnswer> refuse(const HttpRequest& request) const;
  /// Returns the visitor who makes the request; none if the visitor must log in first. A wrong
  /// token goes into the audit, even where the pages need no token. The request must live until
  /// this is done.
  Awaitable<std::optional<Visitor>> visitor_of(const HttpRequest& request, Caller caller);
  /// Whether the visitor of an earlier request may still see the pages.
  Awaitable<bool> is_still_let_in(const HttpRequest& request);
  /// The answer to a request that has no visitor.
  [[nodiscard]] static PageAnswer must_log_in();

  /// POST /api/login {"token": "…"}: sets the cookie of a session. The token is checked first;
  /// only wrong ones are limited, by address.
  Awaitable<PageAnswer> log_in(const HttpRequest& request, Caller caller);
  /// POST /api/logout.
  [[nodiscard]] PageAnswer log_out(const HttpRequest& request);
  /// GET /api/session: who asks.
  Awaitable<PageAnswer> describe(const HttpRequest& request, Caller caller);
  /// Writes into the audit how many rows were left out of it, and forgets old wrong tokens. Those
  /// of all addresses make one row in limits::login_window. Call it every few seconds, from
  /// one strand.
  Awaitable<Result<void>> count_left_out();

 private:
  [[nodiscard]] std::shared_ptr<const Options> options() const;
  struct Found {
    std::optional<Visitor> visitor;
    bool has_wrong_token = false;  // The request has a wrong token, and no cookie that is right.
  };
  Awaitable<Found> find_visitor(const HttpRequest& request);
  /// The log says so when operators can't be read.
  Awaitable<Result<std::optional<Visitor>>> find_operator(std::string token_hash);
  /// Returns false after too many wrong tokens from this address within limits::login_window: then
  /// this one is only counted.
  Awaitable<bool> note_wrong_token(Caller caller, std::string what);
  Awaitable<PageAnswer> open_session(const HttpRequest& request, std::string key, Visitor visitor,
                                     Caller caller);

  ControlStore& store_;
  mutable Mutex mutex_;
  std::shared_ptr<const Options> options_ FL_GUARDED_BY(mutex_);
  LineLimit wrong_tokens_{{.lines_max = limits::wrong_tokens_max,
                           .window = limits::login_window,
                           .kinds_max = limits::wrong_token_addresses_max}};  // By address.
  std::uint64_t wrong_left_out_ = 0;  // Wrong tokens without a row. On count_left_out()'s strand.
  TimePoint next_count_at_;           // On count_left_out()'s strand.
  /// The key of an operator's session is its token's hash: it ends with that token, also if another
  /// operator gets the name. The key of a login with the pages' token is "".
  AdminSessions sessions_;
};

/// SHA-256 of an operator's token, as the history has it.
[[nodiscard]] std::string operator_token_hash(std::string_view token);

/// Whether a request with this Host header may be answered: an IP address, localhost, or one of the
/// names. A web page that lets its own name point to this machine (DNS rebinding) has another one.
[[nodiscard]] bool is_host_allowed(std::string_view host, const std::vector<std::string>& names);

}  // namespace fl::server
