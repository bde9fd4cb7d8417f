// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/bare_pair.hpp"

#include "shared/base/limits.hpp"
#include "shared/identity/authority.hpp"
#include "shared/wire/tls_context.hpp"
#include "shared/wire/ws_link.hpp"
#include "shared/wire/ws_stream.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <boost/beast/websocket/ssl.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <vector>

namespace fl::bench {

namespace {

/// Beast's own stream, without Tributary's code around it.
using BareStream = beast::websocket::stream<beast::ssl_stream<beast::tcp_stream>>;
using tcp = net::ip::tcp;

void send_bytes(BareStream& ws, std::uint64_t bytes) {
  const std::vector<std::byte> block(limits::chunk_bytes_max);
  while (bytes > 0) {
    const auto part = std::min<std::uint64_t>(bytes, block.size());
    ws.write(net::buffer(block.data(), static_cast<std::size_t>(part)));
    bytes -= part;
  }
}

void receive_bytes(BareStream& ws, std::uint64_t bytes) {
  beast::flat_buffer buffer;
  buffer.reserve(limits::message_bytes_max);
  while (bytes > 0) {
    bytes -= ws.read(buffer);
    buffer.clear();
  }
}

}  // namespace

double bare_pair_seconds(std::uint64_t bytes_down, std::uint64_t bytes_up) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("fl-pair-" + std::to_string(::getpid()));
  const double now = static_cast<double>(std::time(nullptr));
  const Authority authority = Authority::open_or_create(posix_files(), folder, now).value();
  std::filesystem::remove_all(folder);
  const auto certificate = authority.issue_server({"localhost"}, now).value();
  net::io_context io;
  tcp::acceptor acceptor(io, tcp::endpoint(net::ip::make_address("127.0.0.1"), 0));
  const auto port = acceptor.local_endpoint().port();

  const pid_t child = ::fork();
  if (child == 0) {
    net::io_context mine;
    auto context = pinning_client_context(authority.fingerprint()).value();
    BareStream ws(mine, context);
    auto& stream = beast::get_lowest_layer(ws);
    stream.connect(tcp::endpoint(net::ip::make_address("127.0.0.1"), port));
    tune_socket(stream.socket());
    ws.next_layer().handshake(net::ssl::stream_base::client);
    tune_websocket(ws);
    ws.handshake("localhost", "/");
    receive_bytes(ws, bytes_down);
    send_bytes(ws, bytes_up);
    ::_exit(0);
  }
  auto context = server_context(certificate, authority).value();
  BareStream ws(acceptor.accept(), context);
  tune_socket(beast::get_lowest_layer(ws).socket());
  ws.next_layer().handshake(net::ssl::stream_base::server);
  tune_websocket(ws);
  ws.accept();
  const auto start = std::chrono::steady_clock::now();
  send_bytes(ws, bytes_down);
  receive_bytes(ws, bytes_up);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ::waitpid(child, nullptr, 0);
  return seconds;
}

}  // namespace fl::bench
