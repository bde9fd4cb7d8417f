// SPDX-License-Identifier: Apache-2.0
// The listener over real sockets: connections that have ended leave their places, and a silent one
// costs no handshake.
#include "server/net/listener.hpp"
#include "server/net/acceptor.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/wire/tls_context.hpp"
#include "tests/support/client_hello.hpp"
#include "tests/support/temporary_folder.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

namespace fl::test {

using namespace fl::server;
namespace {

using tcp = net::ip::tcp;

/// Counts the handshakes; nobody gets further.
class Nobody final : public ConnectionHandler {
 public:
  std::shared_ptr<net::ssl::context> tls() override {
    ++handshakes;
    return context;
  }
  Awaitable<Enrolment> enrol(std::string) override { co_return Enrolment(); }
  Awaitable<Result<Place>> admit(std::string, std::string) override {
    co_return Error(Errc::unavailable, "nobody is let in");
  }
  Awaitable<void> serve(std::shared_ptr<Link>, Place, std::string, std::string) override {
    co_return;
  }

  std::shared_ptr<net::ssl::context> context;
  std::atomic<int> handshakes = 0;
};

struct ListenerWorld {
  TemporaryFolder temp;
  Nobody handler;
  net::io_context io{1};
  std::uint16_t port = 0;
  Listener listener{io, handler, bind(), {.all = 3, .of_address = 3}, {}};
  std::thread thread;

  ListenerWorld() {
    set_log_level(LogLevel::off);
    const double now = Clock::unix_seconds();
    const auto authority = Authority::open_or_create(posix_files(), temp / "ca", now).value();
    const auto certificate = authority.issue_server({"localhost"}, now).value();
    handler.context =
        std::make_shared<net::ssl::context>(server_context(certificate, authority).value());
    listener.start();
    thread = std::thread([this] { io.run(); });
  }
  ~ListenerWorld() {
    io.stop();
    thread.join();
  }
  tcp::acceptor bind() {
    tcp::acceptor bound(net::make_strand(io));
    port = bind_acceptor(bound, {"127.0.0.1", 0}).value().port;
    return bound;
  }
  tcp::socket connect() {
    tcp::socket socket(io);
    socket.connect({net::ip::make_address("127.0.0.1"), port});
    return socket;
  }
  /// Sends a ClientHello, or the rest of one, and waits for the answer.
  static void shake(tcp::socket& socket, const std::string& hello) {
    net::write(socket, net::buffer(hello));
    std::array<char, 1> answer{};
    net::read(socket, net::buffer(answer));
    CHECK(answer[0] == '\x16');
  }
  /// Waits until the server has ended the connection.
  static void await_end(tcp::socket& socket) {
    std::array<char, 100> room{};
    boost::system::error_code ec;
    while (!ec) socket.read_some(net::buffer(room), ec);
  }
};

TEST_CASE("connections that have ended leave their places") {
  ListenerWorld world;
  const std::string hello = make_client_hello();
  tcp::socket silent = world.connect();
  for (int i = 0; i < 20; ++i) {
    tcp::socket broken = world.connect();
    ListenerWorld::shake(broken, hello);
    broken.shutdown(tcp::socket::shutdown_send);
    ListenerWorld::await_end(broken);
    tcp::socket left = world.connect();
    left.close();
  }
  CHECK(world.handler.handshakes == 20);  // None for those that sent nothing.
  boost::system::error_code ec;
  silent.non_blocking(true);
  std::array<char, 1> room{};
  silent.read_some(net::buffer(room), ec);
  CHECK(ec == net::error::would_block);  // It was not in the way of the others.
}

TEST_CASE(
    "a handshake begins with the last byte of the ClientHello, in however many pieces it comes") {
  ListenerWorld world;
  const std::string hello = make_client_hello();
  tcp::socket half = world.connect();
  net::write(half, net::buffer(hello.substr(0, 100)));
  tcp::socket whole = world.connect();
  ListenerWorld::shake(whole, hello);
  CHECK(world.handler.handshakes == 1);
  for (std::size_t at = 100; at < hello.size(); at += 100)
    net::write(half,
               net::buffer(hello.substr(at, std::min<std::size_t>(100, hello.size() - at - 1))));
  ListenerWorld::shake(half, hello.substr(hello.size() - 1));
  CHECK(world.handler.handshakes == 2);
}

TEST_CASE("a connection that can't become a handshake ends without one") {
  ListenerWorld world;
  tcp::socket other = world.connect();
  const std::string request = "GET / HTTP/1.1\r\n\r\n";
  net::write(other, net::buffer(request));
  ListenerWorld::await_end(other);
  CHECK(world.handler.handshakes == 0);
}

TEST_CASE("one silent connection too many ends the oldest") {
  ListenerWorld world;
  tcp::socket oldest = world.connect();
  std::array<tcp::socket, 3> others{world.connect(), world.connect(), world.connect()};
  ListenerWorld::await_end(oldest);
  for (tcp::socket& other : others) {
    boost::system::error_code ec;
    other.non_blocking(true);
    std::array<char, 1> room{};
    other.read_some(net::buffer(room), ec);
    CHECK(ec == net::error::would_block);
  }
  CHECK(world.handler.handshakes == 0);
}

TEST_CASE("connections that are opened as fast as can be are accepted in turns") {
  ListenerWorld world;
  const auto began = std::chrono::steady_clock::now();
  constexpr std::size_t turns = 60;
  for (std::size_t i = 0; i < turns * limits::accepts_of_turn; ++i) world.connect().close();
  // It is accepted after all of them.
  tcp::socket last = world.connect();
  const std::string hello = make_client_hello();
  ListenerWorld::shake(last, hello);
  CHECK(world.handler.handshakes == 1);
  // Each turn begins so long after the one before. The first began with the listener.
  CHECK(std::chrono::steady_clock::now() - began >= (turns - 1) * limits::accept_turn);
}

}  // namespace
}  // namespace fl::test
