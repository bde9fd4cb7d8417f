// SPDX-License-Identifier: Apache-2.0
// Which HTTP proxy leads to a server. The choice follows curl: --proxy, or else https_proxy,
// HTTPS_PROXY, all_proxy, ALL_PROXY name the proxy; no_proxy or NO_PROXY lists the servers that are
// reached without one.
#pragma once

#include "shared/base/environment.hpp"
#include "shared/net/server_address.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace fl {

/// An HTTP proxy that tunnels TCP by CONNECT (RFC 9110, section 9.3.6).
struct Proxy {
  ServerAddress address;
  /// "user:password" for Basic authentication (RFC 7617). Never put this into a message.
  std::optional<std::string> credentials;
  std::string source;  // Where the proxy comes from: "--proxy", or the name of a variable.

  /// "http://HOST:PORT (from SOURCE)", without the credentials.
  [[nodiscard]] std::string shown() const;
};

/// Parses [http://][USER[:PASSWORD]@]HOST:PORT, where USER and PASSWORD may have %XX. Errors don't
/// repeat the text, because it may have a password.
[[nodiscard]] Result<Proxy> parse_proxy(std::string_view text, std::string_view source);

/// Whether a list such as "localhost,.example.org,10.0.0.0/8,[::1],host:443" names this server. A
/// name also stands for all names below it, and "*" alone for every server.
[[nodiscard]] bool is_without_proxy(std::string_view list, const ServerAddress& server);

class ProxyRules {
 public:
  /// Rules by which every server is reached directly.
  ProxyRules() = default;
  /// `flag` is the value of --proxy: "none", a proxy, or "" to follow the environment.
  ProxyRules(std::string flag, const Environment& environment);

  /// The proxy for this server, or none. `invalid_input`: the proxy's address is wrong, or of a
  /// kind that Tributary does not speak.
  [[nodiscard]] Result<std::optional<Proxy>> proxy_for(const ServerAddress& server) const;

 private:
  std::string text_;    // The proxy as the user wrote it; "": none.
  std::string source_;  // Where the user wrote it.
  std::string without_;
};

}  // namespace fl
