// SPDX-License-Identifier: Apache-2.0
// The logins at the admin pages. A login makes a random secret, which the browser keeps as a
// cookie; this process keeps the secret's digest, in memory only. So a restart logs everybody out,
// and nobody who reads the memory or the disk learns a cookie. Any thread.
#pragma once

#include "shared/base/async/clock.hpp"
#include "shared/base/async/mutex.hpp"
#include "shared/base/error.hpp"
#include "shared/identity/crypto.hpp"

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace fl::server {

/// What somebody may do at the admin pages. Each role may also do what the roles before it may.
enum class AdminRole {
  viewer,        // See all pages.
  run_operator,  // Control runs.
  admin,         // Decide who is a member.
};
/// "viewer", "operator", "admin".
[[nodiscard]] std::string_view to_text(AdminRole role);
/// The role with this name; none for any other text.
[[nodiscard]] std::optional<AdminRole> parse_admin_role(std::string_view text);

struct AdminSession {
  std::string key;  // The token that opened the session (AdminAccess).
  TimePoint opened_at{};
  TimePoint expires_at{};
};

class AdminSessions {
 public:
  static constexpr std::string_view cookie_name = "tributary_session";

  /// Opens a session for limits::admin_session_max, and returns its cookie's value. When there are
  /// limits::admin_sessions_max of them, the oldest one with this key ends; `unavailable` if there
  /// is none.
  [[nodiscard]] Result<std::string> open(std::string key);
  /// The session with this cookie, unless it has expired.
  [[nodiscard]] std::optional<AdminSession> find(std::string_view cookie) const;
  /// Ends the session. Nothing happens if there is none.
  void close(std::string_view cookie);
  /// Ends all sessions with this key: the token was revoked.
  void close_all_of(std::string_view key);
  [[nodiscard]] std::size_t size() const;

 private:
  void drop_expired() FL_REQUIRES(mutex_);

  mutable Mutex mutex_;
  /// By the digest of the cookie. A look-up compares digests, so the time it takes says nothing
  /// about secrets.
  std::map<Sha256, AdminSession> sessions_ FL_GUARDED_BY(mutex_);
};

/// The value of a cookie in the text of a Cookie header; "" if it is not there.
[[nodiscard]] std::string_view find_cookie(std::string_view header, std::string_view name);

/// The Set-Cookie header of a session: scripts can't read it, and no other web page makes a browser
/// send it. `is_secure`: the browser came over HTTPS. With a value of "" the browser forgets it.
[[nodiscard]] std::string session_cookie(std::string_view value, bool is_secure);

}  // namespace fl::server
