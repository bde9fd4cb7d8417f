// SPDX-License-Identifier: Apache-2.0
// How the agent of a site and a rank prove to each other that they know the site's secret: each
// sends a random number, and HMAC-SHA-256 of both numbers under the secret. Until then a line is
// short (limits::rank_greeting_bytes_max). What follows on the connection is not encrypted: a
// site's own network must be trusted (docs/guide/sites.md). Any thread.
#pragma once

#include "client/learn/process/socket_line.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/error.hpp"

#include <string>
#include <string_view>

namespace fl {

/// A new secret of 32 random bytes, as text.
[[nodiscard]] Result<std::string> make_site_secret();

/// The agent's part. Errors: unauthenticated; unavailable, deadline.
[[nodiscard]] Result<void> greet_rank(SocketLine& line, std::string_view secret, TimePoint until);
/// The rank's part. Errors: those of greet_rank().
[[nodiscard]] Result<void> greet_agent(SocketLine& line, std::string_view secret, TimePoint until);

}  // namespace fl
