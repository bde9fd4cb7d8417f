// SPDX-License-Identifier: Apache-2.0
#include "server/net/listener.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/identity/enrolment.hpp"
#include "shared/net/address_text.hpp"
#include "shared/wire/tls_context.hpp"
#include "shared/wire/ws_link.hpp"

#include <boost/beast/websocket/rfc6455.hpp>

#include <fmt/format.h>

#include <utility>

namespace fl::server {

namespace {

using tcp = net::ip::tcp;

/// Sends an answer and closes. Does not wait for a peer that stops reading.
Awaitable<void> answer(TlsStream& stream, unsigned status, const std::string& body,
                       const char* type) {
  std::string text = http_answer(status, type, body);
  co_await write_all(stream, std::move(text));
  co_await stream.async_shutdown(as_result);
}

void report_end(const std::exception_ptr& failure) {
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    log_error("a connection ended by an exception: {}", error.what());
  }
}

}  // namespace

Listener::Listener(net::io_context& io, ConnectionHandler& handler, tcp::acceptor acceptor,
                   const Strangers::Limits& limits, Governors governors)
    : handler_(handler),
      acceptor_(std::move(acceptor)),
      governors_(std::move(governors)),
      doorway_(io, acceptor_, "", limits, Opening::client_hello,
               [this](tcp::socket socket, std::string first, Strangers::Id id) {
                 return begin(std::move(socket), std::move(first), id);
               }) {}

std::function<void()> Listener::begin(tcp::socket socket, std::string first, Strangers::Id id) {
  TlsStream tls(std::move(socket), *handler_.tls(), std::move(first));
  auto end = [tls]() mutable { net::post(tls.get_executor(), [tls]() mutable { tls.close(); }); };
  const auto strand = tls.get_executor();
  net::co_spawn(strand, serve(std::move(tls), id), [this, id](const std::exception_ptr& failure) {
    doorway_.leave(id);
    report_end(failure);
  });
  return end;
}

// Handshakes -----------------------------------------------------------------------------------

Awaitable<void> Listener::serve(TlsStream tls, Strangers::Id id) {
  const std::string remote = peer_text(tls.socket());
  tls.expires_after(limits::handshake_max);
  tune_socket(tls.socket());

  const auto [tls_ec] = co_await tls.async_handshake(net::ssl::stream_base::server, as_result);
  if (tls_ec) {
    doorway_.note(LogLevel::info, "TLS handshakes that failed",
                  fmt::format("{}: the TLS handshake failed: {}", remote, tls_ec.message()));
    co_await tls.discard_rest();
    co_return;
  }
  HttpRequest request;
  if (const auto ec = co_await read_http(tls, request, enrolment_bytes_max); ec) {
    doorway_.note(LogLevel::info, "HTTP requests that failed",
                  fmt::format("{}: HTTP: {}", remote, ec.message()));
    co_return;
  }
  const std::string target(request.target());
  if (target == enrolment_target && request.method() == http::verb::post) {
    const Enrolment enrolment = co_await handler_.enrol(std::move(request.body()));
    // Until the answer is taken the connection is a stranger's, and may be ended as such.
    co_await answer(tls, enrolment.status, enrolment.body, "application/json");
    doorway_.leave(id, enrolment.member);
    co_return;
  }
  if (target != session_path || !beast::websocket::is_upgrade(request)) {
    co_await answer(
        tls, 404, "this is a Tributary server: sessions at /v1/session, enrolment at /v1/enroll\n",
        "text/plain");
    co_return;
  }
  co_await serve_session(std::move(tls), std::move(request), id);
}

Awaitable<void> Listener::serve_session(TlsStream tls, HttpRequest request, Strangers::Id id) {
  const std::string remote = peer_text(tls.socket());
  const auto name = peer_name(tls.ssl());
  const auto serial = peer_serial(tls.ssl());
  if (!name || !serial) {
    co_await answer(tls, 401, "a client certificate is needed: join first (fl-client --join TOKEN)",
                    "text/plain");
    co_return;
  }
  auto place = co_await handler_.admit(*name, *serial);
  if (!place) {
    const unsigned status = place.error().code() == Errc::unauthenticated ? 401 : 503;
    doorway_.note(LogLevel::warn, *name + " was not let in",
                  fmt::format("{} ({}): {}", *name, remote, place.error().message()));
    co_await answer(tls, status, place.error().message(), "text/plain");
    co_return;
  }
  doorway_.leave(id, *name);
  auto link = co_await accept_ws(std::move(tls), std::move(request), governors_);
  if (!link) {
    doorway_.note(
        LogLevel::info, *name + ": WebSocket handshakes that failed",
        fmt::format("{} ({}): WebSocket handshake: {}", *name, remote, link.error().message()));
    co_return;
  }
  // A function of its own, so that what the handshake needed is freed.
  const auto strand = (*link)->executor();
  net::co_spawn(strand, handler_.serve(std::move(*link), std::move(*place), *name, *serial),
                report_end);
}

}  // namespace fl::server
