// SPDX-License-Identifier: Apache-2.0
#include "server/net/listener.hpp"

#include "server/net/client_hello.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/identity/enrolment.hpp"
#include "shared/wire/tls_context.hpp"
#include "shared/wire/ws_link.hpp"

#include <boost/asio/strand.hpp>
#include <boost/beast/websocket/rfc6455.hpp>

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

namespace fl {

namespace {

using tcp = net::ip::tcp;

/// The pause after a connection could not be accepted, for want of file descriptors.
constexpr auto accept_pause = std::chrono::milliseconds(100);

/// Sends an answer and closes. Does not wait for a peer that stops reading.
Awaitable<void> answer(TlsStream& stream, unsigned status, const std::string& body,
                       const char* type) {
  std::string text = http_answer(status, type, body);
  co_await write_all(stream, std::move(text));
  co_await stream.async_shutdown(as_result);
}

std::string endpoint_of(const tcp::socket& socket) {
  beast::error_code ignored;
  const auto endpoint = socket.remote_endpoint(ignored);
  return fmt::format("{}:{}", endpoint.address().to_string(), endpoint.port());
}

void report_end(const std::exception_ptr& failure) {
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    log_error("a connection ended by an exception: {}", error.what());
  }
}

/// Appends what has come, as long as `text` has fewer than `bytes_max` bytes. False: nothing more
/// will come.
bool read_what_came(tcp::socket& socket, std::string& text, std::size_t bytes_max) {
  std::array<char, 2048> room;
  while (text.size() < bytes_max) {
    const ssize_t got = ::recv(socket.native_handle(), room.data(), room.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    text.append(room.data(), static_cast<std::size_t>(got));
  }
  return true;
}

/// As the system has measured it so far: since the connection was opened.
Duration round_trip(tcp::socket& socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket.native_handle(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  return std::chrono::microseconds(info.tcpi_rtt);
}

}  // namespace

Address stranger_address(const net::ip::address& address) {
  if (address.is_v4()) return address.to_v4().to_uint();
  const auto v6 = address.to_v6();
  if (v6.is_v4_mapped()) return net::ip::make_address_v4(net::ip::v4_mapped, v6).to_uint();
  Address network = 0;
  const auto bytes = v6.to_bytes();
  for (std::size_t i = 0; i < sizeof network; ++i) network = network << 8 | bytes[i];
  return network;
}

void Listener::start() {
  net::co_spawn(acceptor_.get_executor(), accept(), rethrow);
  net::co_spawn(acceptor_.get_executor(), watch_times(), rethrow);
}

void Listener::close() {
  is_closed_ = true;
  net::post(acceptor_.get_executor(), [this] {
    beast::error_code ignored;
    acceptor_.close(ignored);
  });
}

void Listener::note(LogLevel level, const std::string& kind, const std::string& text) {
  if (lines_.passes(kind)) log_at(level, "{}", text);
}

// Strangers ------------------------------------------------------------------------------------

Awaitable<void> Listener::accept() {
  TimePoint turn = Clock::now();
  for (std::size_t accepted = 0; !is_closed_; ++accepted) {
    if (accepted == limits::accepts_of_turn) {
      co_await sleep_until(turn + limits::accept_turn);
      turn = Clock::now();
      accepted = 0;
    }
    auto strand = net::make_strand(io_);
    auto [ec, socket] = co_await acceptor_.async_accept(net::any_io_executor(strand), as_result);
    if (is_closed_) co_return;
    if (ec) {
      // Most likely there are no file descriptors left. What waits in the backlog is served when
      // some are free again.
      note(LogLevel::warn, "connections that could not be accepted",
           "can't accept a connection: " + ec.message());
      co_await sleep_for(accept_pause);
    } else {
      take(std::move(socket));
    }
  }
}

Awaitable<void> Listener::watch_times() {
  while (!is_closed_) {
    co_await sleep_for(limits::strangers_look);
    make_moves();
    for (const auto& left_out : lines_.take_left_out()) log_warn("{}", to_string(left_out));
  }
}

void Listener::take(tcp::socket socket) {
  beast::error_code ec;
  const auto endpoint = socket.remote_endpoint(ec);
  if (ec) return;  // It has left already.
  const auto id = strangers_.enter(stranger_address(endpoint.address()), Clock::now());
  const auto taken = connections_.emplace(id, Plain{std::move(socket), {}}).first;
  listen_to(std::get<Plain>(taken->second), id);
  make_moves();
}

void Listener::listen_to(Plain& plain, Strangers::Id id) {
  auto heard = [this, id](const beast::error_code& failure) { hear(id, failure); };
  plain.socket.async_wait(tcp::socket::wait_read,
                          net::bind_executor(acceptor_.get_executor(), std::move(heard)));
}

void Listener::hear(Strangers::Id id, const beast::error_code& ec) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;  // It was closed.
  auto& plain = std::get<Plain>(found->second);
  if (!ec && read_what_came(plain.socket, plain.first, limits::client_hello_bytes_max)) {
    read_hello(plain, id);
  } else {
    strangers_.leave(id);
    connections_.erase(found);
  }
  make_moves();
}

void Listener::read_hello(Plain& plain, Strangers::Id id) {
  switch (look_at_hello(bytes_of(std::string_view(plain.first)))) {
    case HelloStage::partial: listen_to(plain, id); break;
    case HelloStage::whole: strangers_.greet(id, round_trip(plain.socket)); break;
    case HelloStage::none:
      note(LogLevel::info, "connections that do not begin with a TLS handshake",
           fmt::format("{}: this is no TLS handshake: clients connect with fl-client",
                       endpoint_of(plain.socket)));
      strangers_.leave(id);
      connections_.erase(id);
  }
}

void Listener::make_moves() {
  const auto moves = strangers_.next(Clock::now());
  for (const auto id : moves.close) {
    const auto found = connections_.find(id);
    if (auto* const tls = std::get_if<TlsStream>(&found->second))
      net::post(tls->get_executor(), [tls = *tls]() mutable { tls.close(); });
    connections_.erase(found);
  }
  if (!moves.close.empty())
    note(LogLevel::info, "connections that were ended before they authenticated",
         fmt::format(
             "{} connections were ended before they authenticated, as they were too slow or too "
             "many; {} are open",
             moves.close.size(), strangers_.count()));
  for (const auto id : moves.begin) begin(id);
}

void Listener::begin(Strangers::Id id) {
  Connection& connection = connections_.at(id);
  auto& plain = std::get<Plain>(connection);
  TlsStream tls(std::move(plain.socket), *handler_.tls(), std::move(plain.first));
  connection = tls;
  const auto strand = tls.get_executor();
  net::co_spawn(strand, serve(std::move(tls), id), [this, id](const std::exception_ptr& failure) {
    leave(id);
    report_end(failure);
  });
}

/// From any strand: it is no stranger any more, or gone. `is_member`: it has shown that it is one,
/// or has become one.
void Listener::leave(Strangers::Id id, bool is_member) {
  net::post(acceptor_.get_executor(), [this, id, is_member] {
    is_member ? strangers_.admit(id, Clock::now()) : strangers_.leave(id);
    if (connections_.erase(id) > 0) make_moves();
  });
}

// Handshakes -----------------------------------------------------------------------------------

Awaitable<void> Listener::serve(TlsStream tls, Strangers::Id id) {
  const std::string remote = endpoint_of(tls.socket());
  tls.expires_after(limits::handshake_max);
  tune_socket(tls.socket());

  const auto [tls_ec] = co_await tls.async_handshake(net::ssl::stream_base::server, as_result);
  if (tls_ec) {
    note(LogLevel::info, "TLS handshakes that failed",
         fmt::format("{}: the TLS handshake failed: {}", remote, tls_ec.message()));
    co_await tls.discard_rest();
    co_return;
  }
  HttpRequest request;
  if (const auto ec = co_await read_http(tls, request, enrolment_bytes_max); ec) {
    note(LogLevel::info, "HTTP requests that failed",
         fmt::format("{}: HTTP: {}", remote, ec.message()));
    co_return;
  }
  const std::string target(request.target());
  if (target == enrolment_target && request.method() == http::verb::post) {
    const HttpAnswer enrolled = co_await handler_.enrol(std::move(request.body()));
    if (enrolled.status == 200) leave(id, true);
    co_await answer(tls, enrolled.status, enrolled.body, "application/json");
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
  const std::string remote = endpoint_of(tls.socket());
  const auto name = peer_name(tls.ssl());
  const auto serial = peer_serial(tls.ssl());
  if (!name || !serial) {
    co_await answer(tls, 401, "a client certificate is needed: join first (fl-client join TOKEN)",
                    "text/plain");
    co_return;
  }
  auto place = co_await handler_.admit(*name, *serial);
  if (!place) {
    const unsigned status = place.error().code() == Errc::unauthenticated ? 401 : 503;
    note(LogLevel::warn, *name + " was not let in",
         fmt::format("{} ({}): {}", *name, remote, place.error().message()));
    co_await answer(tls, status, place.error().message(), "text/plain");
    co_return;
  }
  leave(id, true);
  auto link = co_await accept_ws(std::move(tls), std::move(request), governors_);
  if (!link) {
    note(LogLevel::info, *name + ": WebSocket handshakes that failed",
         fmt::format("{} ({}): WebSocket handshake: {}", *name, remote, link.error().message()));
    co_return;
  }
  // On its own: what the handshake needed is freed.
  const auto strand = (*link)->executor();
  net::co_spawn(strand, handler_.serve(std::move(*link), std::move(*place), *name, *serial),
                report_end);
}

}  // namespace fl
