// SPDX-License-Identifier: Apache-2.0
// An echo server on the very streams that fl-server speaks through: server_context(), tune_socket()
// and tune_websocket(). Autobahn's cases (conformance_test.py) are run against it; of our settings
// it changes one, the largest message, because those cases send up to 16 MiB.
//
//   ws_echo FOLDER    prints its port; FOLDER receives a throw-away certificate authority
#include "shared/base/async/clock.hpp"
#include "shared/identity/authority.hpp"
#include "shared/wire/tls_context.hpp"
#include "shared/wire/ws_link.hpp"
#include "shared/wire/ws_stream.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>

#include <fmt/format.h>

namespace fl {

namespace {

using tcp = net::ip::tcp;
constexpr std::size_t echo_bytes_max = 64 << 20;

Awaitable<void> echo(tcp::socket socket, net::ssl::context& context) {
  WsStream ws(std::move(socket), context);
  tune_socket(ws.next_layer().socket());
  const auto [tls_ec] =
      co_await ws.next_layer().async_handshake(net::ssl::stream_base::server, as_result);
  if (tls_ec) co_return;
  tune_websocket(ws);
  ws.read_message_max(echo_bytes_max);
  const auto [ws_ec] = co_await ws.async_accept(as_result);
  if (ws_ec) co_return;
  beast::flat_buffer buffer;
  for (;;) {
    const auto [read_ec, read] = co_await ws.async_read(buffer, as_result);
    if (read_ec) co_return;
    ws.text(ws.got_text());
    const auto [write_ec, written] = co_await ws.async_write(buffer.cdata(), as_result);
    if (write_ec) co_return;
    buffer.consume(buffer.size());
  }
}

Awaitable<void> accept_all(tcp::acceptor& acceptor, net::ssl::context& context) {
  for (;;) {
    auto [ec, socket] = co_await acceptor.async_accept(as_result);
    if (ec) continue;
    net::co_spawn(acceptor.get_executor(), echo(std::move(socket), context), rethrow);
  }
}

Result<void> serve(const std::filesystem::path& folder) {
  FL_TRY(const auto authority,
         Authority::open_or_create(posix_files(), folder, Clock::unix_seconds()));
  FL_TRY(const auto certificate, authority.issue_server({"127.0.0.1"}, Clock::unix_seconds()));
  FL_TRY(auto context, server_context(certificate, authority));
  net::io_context io(1);
  tcp::acceptor acceptor(io, tcp::endpoint(net::ip::address_v4::loopback(), 0));
  net::co_spawn(io, accept_all(acceptor, context), rethrow);
  fmt::print("{}\n", acceptor.local_endpoint().port());
  std::fflush(stdout);
  io.run();
  return {};
}

}  // namespace

}  // namespace fl

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: ws_echo FOLDER\n");
    return 2;
  }
  const auto served = fl::serve(argv[1]);
  if (!served) fmt::print(stderr, "ws_echo: {}\n", served.error().message());
  return 1;
}
