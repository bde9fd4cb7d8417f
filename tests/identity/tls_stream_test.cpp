// SPDX-License-Identifier: Apache-2.0
// TlsStream over lines that break, delay and damage its bytes: every byte arrives in order, and the
// stream ends with the right error.
#include "tests/identity/tls_world.hpp"

#include <openssl/ssl.h>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include <random>

namespace fl {
namespace {

using namespace fl::test;
using net::ip::tcp;
using Role = net::ssl::stream_base::handshake_type;
using namespace std::chrono_literals;

/// Bytes that differ at every place, so that a lost or moved one shows.
std::string sample(std::size_t size) {
  std::vector<std::uint64_t> words(size / 8 + 1);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = i * 0x9E3779B97F4A7C15U;
  return {reinterpret_cast<const char*>(words.data()), size};
}

/// Two streams. Their sockets are connected directly, or, if bytes_at_once > 0, through a line that
/// passes on at most so many bytes at a time and can flip a bit on the way to the server.
struct Pair {
  explicit Pair(std::size_t bytes_at_once = 0) {
    auto [near, far] = socket_pair(world.io);
    if (bytes_at_once > 0) {
      auto [line, end] = socket_pair(world.io);
      relay(std::move(far), std::move(line), bytes_at_once);
      far = std::move(end);
    }
    client = std::make_unique<TlsStream>(std::move(near), world.client);
    server = std::make_unique<TlsStream>(std::move(far), world.server);
  }

  void relay(tcp::socket a, tcp::socket b, std::size_t bytes_at_once) {
    auto left = std::make_shared<tcp::socket>(std::move(a));
    auto right = std::make_shared<tcp::socket>(std::move(b));
    for (auto& socket : {left, right}) socket->set_option(tcp::no_delay(true));
    net::co_spawn(world.io, pass(left, right, bytes_at_once, true), rethrow);
    net::co_spawn(world.io, pass(right, left, bytes_at_once, false), rethrow);
  }

  Awaitable<void> pass(std::shared_ptr<tcp::socket> from, std::shared_ptr<tcp::socket> to,
                       std::size_t bytes_at_once, bool to_server) {
    std::vector<char> room(bytes_at_once);
    for (;;) {
      auto [ec, bytes] = co_await from->async_read_some(net::buffer(room), as_result);
      if (ec) break;
      if (to_server && std::exchange(flips_next, false)) room[0] ^= 1;
      co_await net::async_write(*to, net::buffer(room, bytes), as_result);
    }
    beast::error_code ignored;
    to->shutdown(tcp::socket::shutdown_send, ignored);
  }

  struct World : TlsWorld {
    net::io_context io;
    net::ssl::context client = client_context(alice).value();
  } world;
  bool flips_next = false;
  std::unique_ptr<TlsStream> client;
  std::unique_ptr<TlsStream> server;
};

Awaitable<void> shake(TlsStream& stream, Role role) {
  const auto [ec] = co_await stream.async_handshake(role, as_result);
  CHECK(!ec);
}

/// Sends all bytes, in lists of buffers of many sizes.
Awaitable<beast::error_code> send(TlsStream& stream, std::string_view bytes) {
  std::minstd_rand random(static_cast<unsigned>(bytes.size()));
  constexpr std::array<std::size_t, 8> sizes{1, 5, 0, 200, 16384, 16385, 70'000, 600'000};
  while (!bytes.empty()) {
    std::vector<net::const_buffer> list;
    std::size_t offered = 0;
    for (auto count = random() % 4 + 1; count > 0; --count) {
      const auto piece = bytes.substr(offered, sizes[random() % sizes.size()]);
      list.push_back(net::buffer(piece));
      offered += piece.size();
    }
    if (offered == 0) continue;
    const auto [ec, written] = co_await stream.async_write_some(list, as_result);
    if (ec) co_return ec;
    CHECK(written > 0);
    CHECK(written <= offered);
    bytes.remove_prefix(written);
  }
  co_return beast::error_code();
}

/// Reads until `bytes` has `size` bytes, or the stream ends.
Awaitable<beast::error_code> receive(TlsStream& stream, std::string& bytes, std::size_t size) {
  std::minstd_rand random(3);
  constexpr std::array<std::size_t, 6> sizes{1, 3, 4096, 16384, 100'000, 1'000'000};
  std::string room(sizes.back(), 0);
  while (bytes.size() < size) {
    const auto first = sizes[random() % sizes.size()] / 2;
    const std::array<net::mutable_buffer, 2> into{
        net::buffer(room.data(), first),
        net::buffer(room.data() + first, sizes[random() % sizes.size()] / 2 + 1)};
    const auto [ec, got] = co_await stream.async_read_some(into, as_result);
    if (ec) co_return ec;
    CHECK(got > 0);
    bytes.append(room.data(), std::min(got, size - bytes.size()));
  }
  co_return beast::error_code();
}

/// The bytes that the server got, and the error that ended the stream.
struct Taken {
  std::string bytes;
  beast::error_code ec;
};

Awaitable<void> take(TlsStream& server, Taken& taken, std::size_t size) {
  co_await shake(server, Role::server);
  taken.ec = co_await receive(server, taken.bytes, size);
}

Awaitable<void> give(TlsStream& client, std::string_view bytes) {
  co_await shake(client, Role::client);
  const auto ec = co_await send(client, bytes);
  CHECK_MESSAGE(!ec, ec.message());
}

TEST_CASE("bytes arrive unchanged, whatever the size of the pieces") {
  for (const std::size_t bytes_at_once : {0, 1, 7, 3000}) {
    CAPTURE(bytes_at_once);
    const std::string sent = sample(bytes_at_once == 0 ? 4'000'000 : 20'000 + 300 * bytes_at_once);
    Pair pair(bytes_at_once);
    Taken taken;
    net::co_spawn(pair.world.io, take(*pair.server, taken, sent.size()), rethrow);
    net::co_spawn(pair.world.io, give(*pair.client, sent), rethrow);
    while (taken.bytes.size() < sent.size() && !taken.ec) pair.world.io.run_one();
    CHECK(!taken.ec);
    CHECK(taken.bytes == sent);
  }
}

TEST_CASE("both directions can be used at once") {
  const std::string sent = sample(3'000'000);
  Pair pair;
  std::array<std::string, 2> arrived;
  const auto end = [&](TlsStream& stream, Role role, std::string& into) -> Awaitable<void> {
    co_await shake(stream, role);
    net::co_spawn(pair.world.io, send(stream, sent),
                  [](const std::exception_ptr&, const beast::error_code& ec) { CHECK(!ec); });
    CHECK(!co_await receive(stream, into, sent.size()));
  };
  net::co_spawn(pair.world.io, end(*pair.client, Role::client, arrived[0]), rethrow);
  net::co_spawn(pair.world.io, end(*pair.server, Role::server, arrived[1]), rethrow);
  pair.world.io.run();
  CHECK(arrived[0] == sent);
  CHECK(arrived[1] == sent);
}

TEST_CASE("a writer waits for a peer that does not read, and nothing is lost") {
  const std::string sent = sample(24'000'000);
  Pair pair;
  bool is_written = false;
  std::string arrived;
  const auto writer = [&]() -> Awaitable<void> {
    co_await give(*pair.client, sent);
    is_written = true;
  };
  const auto reader = [&]() -> Awaitable<void> {
    co_await shake(*pair.server, Role::server);
    co_await net::steady_timer(pair.world.io, 300ms).async_wait(net::use_awaitable);
    CHECK(!is_written);
    CHECK(!co_await receive(*pair.server, arrived, sent.size()));
  };
  net::co_spawn(pair.world.io, writer(), rethrow);
  net::co_spawn(pair.world.io, reader(), rethrow);
  pair.world.io.run();
  CHECK(is_written);
  CHECK(arrived == sent);
}

TEST_CASE("both directions go on after a sender requests new keys in the middle of a stream") {
  const std::string sent = sample(1'000'000);
  Pair pair;
  Taken taken;
  std::string echo;
  const auto server = [&]() -> Awaitable<void> {
    co_await take(*pair.server, taken, 2 * sent.size());
    CHECK(!co_await send(*pair.server, sent));
  };
  const auto client = [&]() -> Awaitable<void> {
    co_await give(*pair.client, sent);
    CHECK(SSL_key_update(&pair.client->ssl(), SSL_KEY_UPDATE_REQUESTED) == 1);
    CHECK(!co_await send(*pair.client, sent));
    CHECK(!co_await receive(*pair.client, echo, sent.size()));
  };
  net::co_spawn(pair.world.io, server(), rethrow);
  net::co_spawn(pair.world.io, client(), rethrow);
  pair.world.io.run();
  CHECK(taken.bytes == sent + sent);
  CHECK(echo == sent);
}

TEST_CASE("an announced end reads as eof, any other as truncated; the bytes before it are read") {
  for (const bool is_announced : {true, false}) {
    CAPTURE(is_announced);
    const std::string sent = sample(100'000);
    Pair pair;
    Taken taken;
    const auto client = [&]() -> Awaitable<void> {
      co_await give(*pair.client, sent);
      if (is_announced) co_await pair.client->async_shutdown(as_result);
      pair.client->close();
    };
    const auto server = [&]() -> Awaitable<void> {
      co_await take(*pair.server, taken, 2 * sent.size());
      if (is_announced) co_await pair.server->async_shutdown(as_result);
    };
    net::co_spawn(pair.world.io, server(), rethrow);
    net::co_spawn(pair.world.io, client(), rethrow);
    pair.world.io.run();
    CHECK(taken.bytes == sent);
    if (is_announced) CHECK(taken.ec == net::error::eof);
    if (!is_announced) CHECK(taken.ec == net::ssl::error::stream_truncated);
  }
}

TEST_CASE("a flipped bit on the line ends the connection after the bytes before it") {
  const std::string sent = sample(50'000);
  Pair pair(4096);
  Taken taken;
  const auto client = [&]() -> Awaitable<void> {
    co_await give(*pair.client, sent);
    while (taken.bytes.size() < sent.size())
      co_await net::steady_timer(pair.world.io, 1ms).async_wait(net::use_awaitable);
    pair.flips_next = true;
    CHECK(!co_await send(*pair.client, sent));
  };
  const auto server = [&]() -> Awaitable<void> {
    co_await take(*pair.server, taken, 2 * sent.size());
    pair.server->close();
  };
  net::co_spawn(pair.world.io, server(), rethrow);
  net::co_spawn(pair.world.io, client(), rethrow);
  while (!taken.ec) pair.world.io.run_one();
  CHECK(taken.bytes == sent);
  CHECK(taken.ec.category() == net::error::get_ssl_category());
}

TEST_CASE("at the deadline the running operation ends with a timeout, and so do later ones") {
  Pair pair;
  std::array<beast::error_code, 2> ends;
  const auto server = [&]() -> Awaitable<void> {
    co_await shake(*pair.server, Role::server);
    co_await net::steady_timer(pair.world.io, 300ms).async_wait(net::use_awaitable);
  };
  const auto client = [&]() -> Awaitable<void> {
    std::string bytes;
    pair.client->expires_after(1h);
    co_await shake(*pair.client, Role::client);
    pair.client->expires_after(50ms);
    for (auto& ec : ends) ec = co_await receive(*pair.client, bytes, 1);
  };
  net::co_spawn(pair.world.io, server(), rethrow);
  net::co_spawn(pair.world.io, client(), rethrow);
  pair.world.io.run_for(5s);
  for (const auto& ec : ends) CHECK(ec == beast::error::timeout);
}

TEST_CASE("a cancelled deadline has no effect, and close() ends the running operation") {
  Pair pair;
  std::optional<beast::error_code> end;
  const auto client = [&]() -> Awaitable<void> {
    std::string bytes;
    co_await shake(*pair.client, Role::client);
    pair.client->expires_after(50ms);
    pair.client->expires_never();
    end = co_await receive(*pair.client, bytes, 1);
  };
  const auto closer = [&]() -> Awaitable<void> {
    co_await shake(*pair.server, Role::server);
    co_await net::steady_timer(pair.world.io, 150ms).async_wait(net::use_awaitable);
    CHECK(!end);
    pair.client->close();
  };
  net::co_spawn(pair.world.io, client(), rethrow);
  net::co_spawn(pair.world.io, closer(), rethrow);
  pair.world.io.run_for(5s);
  REQUIRE(end);
  CHECK(*end == net::error::operation_aborted);
}

TEST_CASE("a client that writes before it reads learns that its certificate was refused") {
  Pair pair;
  const Authority other = new_authority(pair.world.temp / "other-ca");
  new_identity(other, pair.world.temp / "mallory", "alice");
  net::ssl::context foreign = pair.world.pinning();
  foreign.use_certificate_chain_file((pair.world.temp / "mallory/cert.pem").string());
  foreign.use_private_key_file((pair.world.temp / "mallory/key.pem").string(),
                               net::ssl::context::pem);
  for (int i = 0; i < 20; ++i) {
    auto [near, far] = socket_pair(pair.world.io);
    TlsStream client(std::move(near), foreign);
    auto server = std::make_unique<TlsStream>(std::move(far), pair.world.server);
    const auto refuse = [&]() -> Awaitable<void> {
      const auto [ec] = co_await server->async_handshake(Role::server, as_result);
      CHECK(ec);
      co_await server->discard_rest();
      server.reset();
    };
    const auto come = [&]() -> Awaitable<void> {
      co_await shake(client, Role::client);
      co_await net::steady_timer(pair.world.io, 2ms).async_wait(net::use_awaitable);
      std::string answer;
      auto ec = co_await send(client, "GET / HTTP/1.1\r\n\r\n");
      if (!ec) ec = co_await receive(client, answer, 1);
      CHECK(handshake_error(client.ssl(), ec, "here:1").code() == Errc::unauthenticated);
      client.close();
    };
    net::co_spawn(pair.world.io, refuse(), rethrow);
    net::co_spawn(pair.world.io, come(), rethrow);
    pair.world.io.run();
    pair.world.io.restart();
  }
}

TEST_CASE("a flood of key updates does not block the thread") {
  Pair pair;
  constexpr int updates = 20'000;
  int turns = 0;
  bool is_over = false;
  const auto client = [&]() -> Awaitable<void> {
    co_await shake(*pair.client, Role::client);
    for (int i = 0; i < updates; ++i) {
      SSL_key_update(&pair.client->ssl(), SSL_KEY_UPDATE_NOT_REQUESTED);
      if (SSL_do_handshake(&pair.client->ssl()) == 1) continue;
      co_await pair.client->socket().async_wait(tcp::socket::wait_write, net::use_awaitable);
    }
    CHECK(!co_await send(*pair.client, "x"));
  };
  const auto server = [&]() -> Awaitable<void> {
    std::string byte;
    co_await shake(*pair.server, Role::server);
    co_await net::steady_timer(pair.world.io, 200ms).async_wait(net::use_awaitable);
    turns = 0;
    CHECK(!co_await receive(*pair.server, byte, 1));
    is_over = true;
  };
  const auto other = [&]() -> Awaitable<void> {
    while (!is_over) {
      ++turns;
      co_await net::post(pair.world.io, net::use_awaitable);
    }
  };
  net::co_spawn(pair.world.io, server(), rethrow);
  net::co_spawn(pair.world.io, client(), rethrow);
  net::co_spawn(pair.world.io, other(), rethrow);
  pair.world.io.run();
  CHECK(turns > 1000);
}

TEST_CASE("connecting to a closed port is refused at once") {
  Pair pair;
  tcp::acceptor gone(pair.world.io, {net::ip::make_address("127.0.0.1"), 0});
  const auto endpoint = gone.local_endpoint();
  gone.close();
  TlsStream stream(pair.world.io.get_executor(), pair.world.client);
  beast::error_code end;
  const auto connect = [&]() -> Awaitable<void> {
    stream.expires_after(5s);
    const std::vector<tcp::endpoint> only(1, endpoint);
    end = co_await stream.connect(only);
    stream.expires_never();
  };
  net::co_spawn(pair.world.io, connect(), rethrow);
  pair.world.io.run();
  CHECK(end == net::error::connection_refused);
}

TEST_CASE("an address that does not answer leaves time for the next address") {
  Pair pair;
  const auto loopback = net::ip::make_address("127.0.0.1");
  // While its queue is full, new connections are dropped, as by a firewall.
  tcp::acceptor silent(pair.world.io);
  silent.open(tcp::v4());
  silent.bind({loopback, 0});
  silent.listen(0);
  std::vector<tcp::socket> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.emplace_back(pair.world.io).open(tcp::v4());
    waiting.back().native_non_blocking(true);
    // Asio's connect() would wait for an answer, which does not come.
    const tcp::endpoint to = silent.local_endpoint();
    ::connect(waiting.back().native_handle(), to.data(), socklen_t(to.size()));
  }
  tcp::acceptor open(pair.world.io, {loopback, 0});
  const std::vector<tcp::endpoint> both{silent.local_endpoint(), open.local_endpoint()};
  TlsStream stream(pair.world.io.get_executor(), pair.world.client);
  beast::error_code end = net::error::would_block;
  const auto connect = [&](std::vector<tcp::endpoint> endpoints) -> Awaitable<void> {
    stream.expires_after(2s);
    end = co_await stream.connect(endpoints);
    stream.expires_never();
  };
  net::co_spawn(pair.world.io, connect(both), rethrow);
  pair.world.io.run();
  CHECK_FALSE(end);
  CHECK(stream.socket().remote_endpoint() == open.local_endpoint());

  net::co_spawn(pair.world.io, connect({both[0], both[0]}), rethrow);
  pair.world.io.restart();
  pair.world.io.run();
  CHECK(end == beast::error::timeout);
}

}  // namespace
}  // namespace fl
