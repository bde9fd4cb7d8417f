// SPDX-License-Identifier: Apache-2.0
// AdminAccess decides who may see the admin pages. The Host of a request must be ours. If the pages
// have a token, the request must present it, or the cookie of a login with it. Any thread.
#pragma once

#include "server/admin/answer.hpp"
#include "server/admin/sessions.hpp"
#include "shared/net/http.hpp"

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

/// Whom a request comes from.
struct Visitor {
  AdminRole role = AdminRole::viewer;
  std::string name;           // "": whoever may see the pages.
  bool is_logged_in = false;  // By a cookie, which a browser sends by itself.
};

class AdminAccess {
 public:
  struct Options {
    /// Names by which browsers and scrapers may reach the pages, beside IP addresses and localhost.
    std::vector<std::string> hosts;
    std::string token;  // "": everybody who reaches the pages may see them.
  };
  explicit AdminAccess(Options options)
      : options_(std::make_shared<const Options>(std::move(options))) {}
  /// Who may see the pages from now on. If the token is another, logins with the one
  /// before end. Returns whether it is.
  bool change(Options options);

  /// An answer if the request may get no other: a foreign host, or a body without a page that
  /// could have made it.
  [[nodiscard]] std::optional<PageAnswer> refuse(const HttpRequest& request) const;
  /// None: it must log in first.
  [[nodiscard]] std::optional<Visitor> visitor_of(const HttpRequest& request) const;
  [[nodiscard]] static PageAnswer must_log_in();

  /// POST /api/login {"token": "…"}: sets the cookie of a session.
  [[nodiscard]] PageAnswer log_in(const HttpRequest& request);
  /// POST /api/logout.
  [[nodiscard]] PageAnswer log_out(const HttpRequest& request);
  /// GET /api/session: who asks, and whether one can log in.
  [[nodiscard]] PageAnswer describe(const HttpRequest& request) const;

 private:
  [[nodiscard]] std::shared_ptr<const Options> options() const;

  mutable std::mutex mutex_;
  std::shared_ptr<const Options> options_;  // Under the mutex.
  AdminSessions sessions_;
};

/// Whether a request with this Host header may be answered: an IP address, localhost, or one of the
/// names. A web page that lets its own name point to this machine (DNS rebinding) has another one.
[[nodiscard]] bool is_host_allowed(std::string_view host, const std::vector<std::string>& names);

}  // namespace fl
