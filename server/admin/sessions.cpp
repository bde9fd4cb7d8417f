// SPDX-License-Identifier: Apache-2.0
#include "server/admin/sessions.hpp"

#include "shared/base/io/text_of_bytes.hpp"
#include "shared/base/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace fl::server {

namespace {

constexpr std::array<std::pair<AdminRole, std::string_view>, 3> role_names{
    {{AdminRole::viewer, "viewer"},
     {AdminRole::run_operator, "operator"},
     {AdminRole::admin, "admin"}}};

constexpr std::size_t secret_bytes = 32;

}  // namespace

std::string_view to_text(AdminRole role) {
  for (const auto& [each, name] : role_names)
    if (each == role) return name;
  return "";
}

std::optional<AdminRole> parse_admin_role(std::string_view text) {
  for (const auto& [role, name] : role_names)
    if (name == text) return role;
  return std::nullopt;
}

Result<std::string> AdminSessions::open(std::string key) {
  std::array<std::byte, secret_bytes> secret;
  FL_CHECK(fill_random(secret));
  std::string cookie = to_base64url(secret);
  const MutexLock lock(mutex_);
  drop_expired();
  if (sessions_.size() >= limits::admin_sessions_max) {
    auto oldest = sessions_.end();
    for (auto it = sessions_.begin(); it != sessions_.end(); ++it) {
      if (it->second.key != key) continue;
      if (oldest == sessions_.end() || it->second.opened_at < oldest->second.opened_at) oldest = it;
    }
    if (oldest == sessions_.end()) {
      return Error(Errc::unavailable, fmt::format("{} people are logged in, which is the limit: "
                                                  "wait until one has logged out",
                                                  limits::admin_sessions_max));
    }
    sessions_.erase(oldest);
  }
  const TimePoint now = Clock::now();
  sessions_[sha256(bytes_of(std::string_view(cookie)))] = {std::move(key), now,
                                                           now + limits::admin_session_max};
  return cookie;
}

std::optional<AdminSession> AdminSessions::find(std::string_view cookie) const {
  const Sha256 digest = sha256(bytes_of(cookie));
  const MutexLock lock(mutex_);
  const auto found = sessions_.find(digest);
  if (found == sessions_.end() || found->second.expires_at <= Clock::now()) return std::nullopt;
  return found->second;
}

void AdminSessions::close(std::string_view cookie) {
  const Sha256 digest = sha256(bytes_of(cookie));
  const MutexLock lock(mutex_);
  sessions_.erase(digest);
}

void AdminSessions::close_all_of(std::string_view key) {
  const MutexLock lock(mutex_);
  std::erase_if(sessions_, [key](const auto& each) { return each.second.key == key; });
}

std::size_t AdminSessions::size() const {
  const MutexLock lock(mutex_);
  return sessions_.size();
}

void AdminSessions::drop_expired() {
  const TimePoint now = Clock::now();
  std::erase_if(sessions_, [now](const auto& each) { return each.second.expires_at <= now; });
}

std::string_view find_cookie(std::string_view header, std::string_view name) {
  while (!header.empty()) {
    const auto end = std::min(header.find(';'), header.size());
    std::string_view pair = header.substr(0, end);
    header.remove_prefix(std::min(end + 1, header.size()));
    pair.remove_prefix(std::min(pair.find_first_not_of(' '), pair.size()));
    const auto equals = pair.find('=');
    if (equals != pair.npos && pair.substr(0, equals) == name) return pair.substr(equals + 1);
  }
  return {};
}

std::string session_cookie(std::string_view value, bool is_secure) {
  const auto life =
      value.empty() ? std::chrono::seconds(0) : std::chrono::seconds(limits::admin_session_max);
  return fmt::format("{}={}; Path=/; Max-Age={}; HttpOnly; SameSite=Strict{}",
                     AdminSessions::cookie_name, value, life.count(), is_secure ? "; Secure" : "");
}

}  // namespace fl::server
