// Where a server listens, as people write it: HOST:PORT or [IPv6]:PORT.
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

/// A DNS name of at most 253 characters, or an IP address without a zone ("%eth0" means nothing on
/// another machine). Otherwise invalid_input.
[[nodiscard]] Result<void> check_host(std::string_view host);

/// The port must be there, from 1 to 65535. Otherwise invalid_input.
[[nodiscard]] Result<ServerAddress> parse_server_address(std::string_view text);

/// What parse_server_address reads.
[[nodiscard]] std::string to_string(const ServerAddress& address);

}  // namespace fl
