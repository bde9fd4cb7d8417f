// SPDX-License-Identifier: Apache-2.0
// Addresses as text, for people. Any thread.
#pragma once

#include <boost/asio/ip/tcp.hpp>

#include <string>

struct sockaddr;

namespace fl {

/// Without the port: "192.0.2.7", "2001:db8::7". Other sockets than of IPv4 and IPv6: "the Unix
/// socket".
[[nodiscard]] std::string host_text(const sockaddr& address);

/// The other end of a connection: "192.0.2.7:8443", "[2001:db8::7]:8443"; "unknown" once it is
/// gone.
[[nodiscard]] std::string peer_text(const boost::asio::ip::tcp::socket& socket);

}  // namespace fl
