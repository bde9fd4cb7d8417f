// SPDX-License-Identifier: Apache-2.0
// dial(): connects TCP to a server by its name, directly or through an HTTP proxy.
#pragma once

#include "shared/net/proxy.hpp"
#include "shared/net/tls_stream.hpp"

#include <boost/asio/ip/tcp.hpp>

#include <vector>

namespace fl {

/// The addresses of a name in the order in which they are tried: IPv6 and IPv4 in turn, each in the
/// order that the system prefers. So if one of the two does not work, it costs one attempt (RFC
/// 8305, section 4). At most limits::addresses_max.
[[nodiscard]] std::vector<net::ip::tcp::endpoint> in_turn(
    const net::ip::tcp::resolver::results_type& found);

/// Connects `stream`, whose deadline the caller has set, to the server: the TLS handshake comes
/// next. Every call looks the name up anew, because addresses change, and tries up to
/// limits::addresses_max of them in turn. Through a proxy, the proxy looks the server's name up.
///
/// Errors name the server, or the proxy and where it was set. `unavailable`: it was not reached;
/// try again later. `deadline`: it was not reached within the stream's deadline. `invalid_input`:
/// the proxy's address is wrong. `conflict`: the proxy does not let us through.
[[nodiscard]] Awaitable<Result<void>> dial(TlsStream& stream, ServerAddress server,
                                           ProxyRules rules);

}  // namespace fl
