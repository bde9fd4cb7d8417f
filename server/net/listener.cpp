// SPDX-License-Identifier: Apache-2.0
#include "server/net/listener.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/identity/enrolment.hpp"
#include "shared/net/http.hpp"
#include "shared/wire/tls_context.hpp"
#include "shared/wire/ws_link.hpp"

#include <boost/asio/ssl/error.hpp>
#include <boost/beast/websocket/rfc6455.hpp>

#include <fmt/format.h>

namespace fl {

namespace {

using tcp = net::ip::tcp;

/// Sends an answer and closes. Does not wait for a peer that stops reading.
Awaitable<void> answer(TlsStream& stream, unsigned status, const std::string& body,
                       const char* type) {
  std::string text = http_answer(status, type, body);
  co_await write_all(stream, std::move(text));
  co_await stream.async_shutdown(as_result);
}

}  // namespace

Awaitable<void> Listener::serve(tcp::socket socket) {
  const auto context = handler_.tls();
  TlsStream tls(std::move(socket), *context);
  beast::error_code ignored;
  const auto endpoint = tls.socket().remote_endpoint(ignored);
  const std::string remote = fmt::format("{}:{}", endpoint.address().to_string(), endpoint.port());
  tls.expires_after(limits::handshake_max);
  tune_socket(tls.socket());

  const auto [tls_ec] = co_await tls.async_handshake(net::ssl::stream_base::server, as_result);
  if (tls_ec) {
    log_info("{}: TLS handshake: {}", remote, tls_ec.message());
    co_await tls.discard_rest();
    co_return;
  }
  HttpRequest request;
  if (const auto ec = co_await read_http(tls, request, enrolment_bytes_max); ec) {
    log_info("{}: HTTP: {}", remote, ec.message());
    co_return;
  }
  const std::string target(request.target());
  if (target == enrolment_target && request.method() == http::verb::post) {
    const HttpAnswer enrolled = co_await handler_.enrol(std::move(request.body()));
    co_await answer(tls, enrolled.status, enrolled.body, "application/json");
    co_return;
  }
  if (target != session_path || !beast::websocket::is_upgrade(request)) {
    co_await answer(
        tls, 404, "this is a Tributary server: sessions at /v1/session, enrolment at /v1/enroll\n",
        "text/plain");
    co_return;
  }
  const auto name = peer_name(tls.ssl());
  const auto serial = peer_serial(tls.ssl());
  if (!name || !serial) {
    co_await answer(tls, 401, "a client certificate is needed: join first (fl-client join TOKEN)",
                    "text/plain");
    co_return;
  }
  const auto admitted = co_await handler_.admit(*name, *serial);
  if (!admitted) {
    const unsigned status = admitted.error().code() == Errc::unauthenticated ? 401 : 503;
    log_warn("{} ({}): {}", *name, remote, admitted.error().message());
    co_await answer(tls, status, admitted.error().message(), "text/plain");
    co_return;
  }
  auto link = co_await accept_ws(std::move(tls), std::move(request));
  if (!link) {
    log_info("{} ({}): WebSocket handshake: {}", *name, remote, link.error().message());
    co_return;
  }
  co_await handler_.serve(std::move(*link), *name, *serial);
}

}  // namespace fl
