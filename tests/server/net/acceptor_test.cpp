// SPDX-License-Identifier: Apache-2.0
// A server that lives long: connections that have ended do not count.
#include "server/net/acceptor.hpp"
#include "shared/base/log.hpp"

#include <doctest/doctest.h>
#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>

#include <array>
#include <atomic>
#include <stdexcept>
#include <thread>

namespace fl::test {
namespace {

using tcp = net::ip::tcp;

/// An acceptor that serves at most two connections at a time, and its thread. It ends half of them
/// by an exception.
struct AcceptorWorld {
  net::io_context io{1};
  std::atomic<int> served = 0;
  std::uint16_t port = 0;
  Acceptor acceptor{io, bind(), {"test connection", 2}, [this](tcp::socket socket) {
                      return serve(*this, std::move(socket));
                    }};
  std::thread thread;

  AcceptorWorld() {
    set_log_level(LogLevel::off);
    acceptor.start();
    thread = std::thread([this] { io.run(); });
  }
  ~AcceptorWorld() {
    acceptor.close();
    thread.join();
  }
  tcp::acceptor bind() {
    tcp::acceptor bound(net::make_strand(io));
    port = bind_acceptor(bound, {"127.0.0.1", 0}).value().port;
    return bound;
  }
  /// Sends a byte and waits for the peer's end of the connection.
  static Awaitable<void> serve(AcceptorWorld& world, tcp::socket socket) {
    const int number = world.served++;
    const std::array<char, 1> hello{'h'};
    co_await net::async_write(socket, net::buffer(hello), as_result);
    std::array<char, 1> room{};
    co_await socket.async_read_some(net::buffer(room), as_result);
    if (number % 2 == 1) throw std::runtime_error("an error while serving");
  }
  /// A connection that has its byte, or an unconnected socket if the server closed it.
  tcp::socket connect() {
    tcp::socket socket(io);
    socket.connect({net::ip::make_address("127.0.0.1"), port});
    std::array<char, 1> hello{};
    boost::system::error_code ec;
    socket.read_some(net::buffer(hello), ec);
    if (ec) socket.close();
    return socket;
  }
};

TEST_CASE("connections that have ended leave their places, also when they ended by an exception") {
  AcceptorWorld world;
  for (int i = 0; i < 20; ++i) {
    CAPTURE(i);
    tcp::socket socket = world.connect();
    // The place of the one before may still be taken for a moment, but not those of more.
    REQUIRE(socket.is_open());
  }
  CHECK(world.served == 20);
  tcp::socket first = world.connect();
  tcp::socket second(world.io);
  for (int tries = 0; tries < 1000 && !second.is_open(); ++tries) second = world.connect();
  CHECK(first.is_open());
  CHECK(second.is_open());
  CHECK_FALSE(world.connect().is_open());
  first.close();
  for (int tries = 0; tries < 1000 && !first.is_open(); ++tries) first = world.connect();
  CHECK(first.is_open());
}

}  // namespace
}  // namespace fl::test
