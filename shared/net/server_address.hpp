// SPDX-License-Identifier: Apache-2.0
// A server's address, written as HOST:PORT or [IPv6]:PORT.
#pragma once

#include "shared/base/error.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace fl {

struct ServerAddress {
  std::string host;  // A DNS name or an IP address; IPv6 without brackets.
  std::uint16_t port = 0;

  bool operator==(const ServerAddress&) const = default;
};

[[nodiscard]] bool is_ip_address(std::string_view host);

/// Accepts a DNS name of at most 253 characters, or an IP address without a zone ("%eth0" has no
/// meaning on another machine). Anything else is invalid_input.
[[nodiscard]] Result<void> check_host(std::string_view host);

/// Parses HOST:PORT. The port is required, from 1 to 65535. Errors are invalid_input.
[[nodiscard]] Result<ServerAddress> parse_server_address(std::string_view text);

/// Parses an address to listen on, where port 0 means a free one.
[[nodiscard]] Result<ServerAddress> parse_listen_address(std::string_view text);

/// Parses an address whose port may be missing: then it is `port`. So IPv6 may do without brackets.
[[nodiscard]] Result<ServerAddress> parse_server_address(std::string_view text, std::uint16_t port);

/// Writes the address as parse_server_address() reads it.
[[nodiscard]] std::string to_string(const ServerAddress& address);

}  // namespace fl
