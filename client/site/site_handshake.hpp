// SPDX-License-Identifier: Apache-2.0
// How the agent of a site and a rank prove to each other that they know the site's secret: each
// sends a random number, and HMAC-SHA-256 of both numbers under the secret. Until then a line is
// short (limits::rank_greeting_bytes_max). Then the rank says hello. What follows on the connection
// is not encrypted: a site's own network must be trusted (docs/guide/sites.md). Any thread.
#pragma once

#include "client/learn/process/socket_line.hpp"
#include "client/site/site_member.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/error.hpp"
#include "shared/base/json.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace fl::site {

/// A new secret of 32 random bytes, as text.
[[nodiscard]] Result<std::string> make_site_secret();

/// The agent's part on one connection, a message at a time. It waits for nothing.
class RankGreeting {
 public:
  /// For a site of `size` ranks. Errors: io (the system has no random numbers).
  [[nodiscard]] static Result<RankGreeting> begin(std::string secret, int size);

  /// The agent's first message.
  [[nodiscard]] nlohmann::json challenge() const;
  /// Reads the rank's next message. `answer` becomes what the agent says now, also where this
  /// fails; null if it says nothing. Returns the rank after its hello, and nothing before. Errors:
  /// unauthenticated (no proof), and those of parse_rank_hello().
  [[nodiscard]] Result<std::optional<SiteMember>> hear(const nlohmann::json& message,
                                                       nlohmann::json& answer);

 private:
  RankGreeting(std::string secret, int size, std::string number)
      : secret_(std::move(secret)), size_(size), number_(std::move(number)) {}
  [[nodiscard]] Result<void> check(const nlohmann::json& message, nlohmann::json& answer) const;

  std::string secret_;
  int size_;
  std::string number_;  // The agent's random number.
  bool has_proof_ = false;
};

/// The rank's part until the hello. Errors: unauthenticated; unavailable, deadline.
[[nodiscard]] Result<void> greet_agent(SocketLine& line, std::string_view secret, TimePoint until);

}  // namespace fl::site
