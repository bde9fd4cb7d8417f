// The Link over a TLS 1.3 WebSocket. A reader coroutine always has a read pending (Beast's idle
// timer only runs then), a writer coroutine sends what send() queued, control before bulk. Both
// live on the stream's strand.
#pragma once

#include "shared/net/tls_stream.hpp"
#include "shared/wire/link.hpp"

#include <boost/asio/ssl/context.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>

#include <memory>

namespace fl {

inline constexpr std::string_view session_path = "/v1/session";

/// TCP_NODELAY, and no more unsent bytes in the kernel than keeps the line busy, so that a control
/// message never queues behind megabytes of bulk.
void tune_socket(net::ip::tcp::socket& socket);

/// Answers a client's request for an upgrade to WebSocket, which was read from `stream`, within
/// limits::handshake_max. Errors: `unavailable`, `protocol`.
Awaitable<Result<std::shared_ptr<Link>>> accept_ws(
    TlsStream stream, beast::http::request<beast::http::string_body> request);

/// Resolves, connects, and shakes hands (TLS with `context`, then WebSocket), all within
/// limits::handshake_max. The link runs on `executor`, which must be a strand. Errors:
/// `unavailable` (try again), `unauthenticated` (TLS: the certificate of either end is not
/// accepted), `protocol` (an HTTP answer that is no WebSocket upgrade; its text is in the message).
Awaitable<Result<std::shared_ptr<Link>>> connect_ws(net::any_io_executor executor, std::string host,
                                                    std::string port, net::ssl::context& context);

}  // namespace fl
