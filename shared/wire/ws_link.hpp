// SPDX-License-Identifier: Apache-2.0
// WsLink: the Link over a TLS 1.3 WebSocket. A reader coroutine has a read pending, because Beast's
// idle timer runs only then; but not while its user has yet to take one message and another waits.
// While messages wait, a writer coroutine sends them, control messages before bulk data. Both run
// on the stream's strand. With limits (Governors) bulk messages wait for their turn, and control
// messages pass them meanwhile. What we receive is limited by the peer, which sends as much as it
// has credit for (wire::Credit): an end that reads slowly would delay the peer's control messages,
// and answers to pings.
#pragma once

#include "shared/net/governor.hpp"
#include "shared/net/proxy.hpp"
#include "shared/net/tls_stream.hpp"
#include "shared/wire/link.hpp"

#include <boost/asio/ssl/context.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>

#include <memory>

namespace fl {

inline constexpr std::string_view session_path = "/v1/session";

/// Sets TCP_NODELAY, and limits the unsent bytes in the kernel (TCP_NOTSENT_LOWAT) to what keeps
/// the connection busy, so that a control message never waits behind megabytes of bulk data.
void tune_socket(net::ip::tcp::socket& socket);

/// The server's side: answers a client's WebSocket upgrade request, which was read from `stream`,
/// within limits::handshake_max. Until expect_messages_of() the client may send messages of up to
/// limits::hello_bytes_max. Errors: `unavailable`, `protocol`.
Awaitable<Result<std::shared_ptr<Link>>> accept_ws(
    TlsStream stream, beast::http::request<beast::http::string_body> request, Governors governors);

/// The client's side: reaches the server by dial(), and does the handshakes (TLS with `context`,
/// then WebSocket), each within limits::handshake_max. The link runs on `executor`, which must be a
/// strand. Errors: `unavailable` (retry later; also when a certificate is not valid by the clock of
/// one end), `unauthenticated` (one end rejected the other's certificate), `conflict` (a proxy does
/// not let us through, or another server, such as a firewall, answers in the server's place),
/// `protocol` (the server answered with HTTP instead of an upgrade; the message has its text).
Awaitable<Result<std::shared_ptr<Link>>> connect_ws(net::any_io_executor executor,
                                                    ServerAddress server, ProxyRules rules,
                                                    Governors governors,
                                                    net::ssl::context& context);

}  // namespace fl
