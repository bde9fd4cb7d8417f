// SPDX-License-Identifier: Apache-2.0
// WsLink over TLS on this machine with limits: bulk keeps to the rate in both directions, control
// messages pass it, and ends without a limit see nothing of all this.
#include "shared/base/limits.hpp"
#include "shared/net/http.hpp"
#include "shared/wire/ws_link.hpp"
#include "tests/identity/tls_world.hpp"

#include <boost/beast/websocket/rfc6455.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

namespace fl::test {
namespace {

using namespace std::chrono_literals;
using net::ip::tcp;

constexpr std::size_t chunk_bytes = 64 << 10;

/// A server with one session, and the client's end of it.
struct LinkPair {
  TlsWorld world;
  net::io_context io;
  net::strand<net::any_io_executor> near_strand{net::any_io_executor(io.get_executor())};
  net::strand<net::any_io_executor> far_strand{net::any_io_executor(io.get_executor())};
  tcp::acceptor acceptor{far_strand, {net::ip::make_address("127.0.0.1"), 0}};
  net::ssl::context context = client_context(world.alice).value();
  std::shared_ptr<Link> near;
  std::shared_ptr<Link> far;

  LinkPair(const Governors& of_client, const Governors& of_server) {
    net::co_spawn(far_strand, accept(of_server), rethrow);
    net::co_spawn(near_strand, connect(of_client), rethrow);
    while (!near || !far) REQUIRE(io.run_one() == 1);
    // Between the programs there is a handshake by messages first.
    const bool is_limited = of_server.down && of_server.down->is_limited();
    while (is_limited && near->payload_room() == limits::chunk_bytes_max)
      REQUIRE(io.run_one() == 1);
    near->expect_messages_of(limits::message_bytes_max);
    far->expect_messages_of(limits::message_bytes_max);
  }
  ~LinkPair() {
    near->close();
    far->close();
    io.run_for(2s);
  }

 private:
  Awaitable<void> accept(Governors traffic) {
    auto [ec, socket] = co_await acceptor.async_accept(as_result);
    TlsStream stream(std::move(socket), world.server);
    co_await stream.async_handshake(net::ssl::stream_base::server, as_result);
    HttpRequest request;
    if (co_await read_http(stream, request, 0)) co_return;
    auto link = co_await accept_ws(std::move(stream), std::move(request), traffic);
    far = link.value();
  }
  Awaitable<void> connect(Governors traffic) {
    const ServerAddress server{"127.0.0.1", acceptor.local_endpoint().port()};
    auto link = co_await connect_ws(near_strand, server, ProxyRules(), traffic, context);
    near = link.value();
  }
};

Governors limited(double up, double down) {
  const auto governor = [](double rate) {
    return rate > 0 ? std::make_shared<Governor>(RateSchedule(rate)) : nullptr;
  };
  Governors traffic;
  traffic.up = governor(up);
  traffic.down = governor(down);
  return traffic;
}

/// Sends chunks until the time is over.
Awaitable<void> send_bulk(std::shared_ptr<Link> link, TimePoint until) {
  const auto content = std::make_shared<std::string>(chunk_bytes, 'x');
  while (Clock::now() < until) {
    wire::Header header;
    header.mutable_chunk()->set_offset(1);
    Message message(std::move(header), Payload(content, bytes_of(std::string_view(*content))));
    const auto sent = co_await link->send(std::move(message));
    if (!sent) co_return;
  }
}

/// Sends a control message every 50 ms, which says when it was sent.
Awaitable<void> send_control(std::shared_ptr<Link> link, TimePoint until) {
  while (Clock::now() < until) {
    wire::Header header;
    header.mutable_chunk()->set_offset(0);
    header.mutable_chunk()->set_transfer(
        static_cast<std::uint64_t>(Clock::now().time_since_epoch().count()));
    Message message(std::move(header));
    const auto sent = co_await link->send(std::move(message));
    if (!sent) co_return;
    co_await sleep_for(50ms);
  }
}

/// Shared with the coroutine that fills it, which may run on until its link is closed.
struct Received {
  std::uint64_t bulk_bytes = 0;
  TimePoint last{};
  std::vector<double> control_s;  // How long each control message took.
};

Awaitable<void> receive(std::shared_ptr<Link> link, std::shared_ptr<Received> received) {
  for (;;) {
    const auto message = co_await link->receive();
    if (!message) co_return;
    if (!message->payload.empty()) {
      received->bulk_bytes += message->payload.bytes().size();
      received->last = Clock::now();
      continue;
    }
    const auto sent = message->header.chunk().transfer();
    const TimePoint at{Duration(static_cast<Duration::rep>(sent))};
    received->control_s.push_back(seconds(Clock::now() - at));
  }
}

/// Sends bulk and control messages to the server for a time. Returns what it received.
Received run(LinkPair& pair, std::chrono::milliseconds time) {
  const auto received = std::make_shared<Received>();
  pair.far->expect_bulk(1 << 30);
  const TimePoint until = Clock::now() + time;
  net::co_spawn(pair.far_strand, receive(pair.far, received), rethrow);
  net::co_spawn(pair.near_strand, send_bulk(pair.near, until), rethrow);
  net::co_spawn(pair.near_strand, send_control(pair.near, until), rethrow);
  pair.io.run_until(std::chrono::steady_clock::now() + time);
  return *received;
}

/// A busy machine may be slower than the rate, but never faster.
void check_limited(Received received, double bytes_per_s, double time_s, double ahead) {
  const double burst = bytes_per_s * seconds(limits::traffic_burst);
  const auto bytes = static_cast<double>(received.bulk_bytes);
  CHECK(bytes < bytes_per_s * time_s * 1.05 + burst + ahead);
  CHECK(bytes > bytes_per_s * time_s * 0.3);
  auto& times = received.control_s;
  REQUIRE(times.size() > 5);
  std::ranges::sort(times);
  // A chunk alone takes 65 ms at this rate, and what fits between the two ends half a second.
  CHECK(times[times.size() / 2] < 0.05);
}

TEST_CASE("what an end sends keeps to its rate, and control messages do not wait") {
  LinkPair pair(limited(1e6, 0), limited(0, 0));
  check_limited(run(pair, 2s), 1e6, 2, chunk_bytes);
  CHECK(pair.near->payload_room() == limits::chunk_bytes_max);  // The peer has no limit.
}

TEST_CASE("what an end receives keeps to its rate, and control messages do not wait") {
  LinkPair pair(limited(0, 0), limited(0, 1e6));
  check_limited(run(pair, 2s), 1e6, 2, chunk_bytes);
  CHECK(pair.near->payload_room() < 3 * limits::chunk_bytes_min);
}

TEST_CASE("what an end receives from many keeps to one rate") {
  const Governors limit = limited(0, 1e6);
  std::vector<std::unique_ptr<LinkPair>> pairs;
  for (int i = 0; i < 5; ++i) pairs.push_back(std::make_unique<LinkPair>(limited(0, 0), limit));
  std::vector<std::shared_ptr<Received>> received;
  const TimePoint begin = Clock::now();
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    received.push_back(std::make_shared<Received>());
    pairs[i]->far->expect_bulk(1 << 30);
    net::co_spawn(pairs[i]->far_strand, receive(pairs[i]->far, received[i]), rethrow);
    net::co_spawn(pairs[i]->near_strand, send_bulk(pairs[i]->near, begin + 2s), rethrow);
  }
  while (Clock::now() < begin + 2s)
    for (const auto& pair : pairs) pair->io.run_for(1ms);
  const double took_s = seconds(Clock::now() - begin);
  std::uint64_t bytes = 0;
  for (const auto& one : received) {
    CHECK(one->bulk_bytes > 0);
    bytes += one->bulk_bytes;
  }
  CHECK(static_cast<double>(bytes) < 1e6 * (took_s * 1.05 + seconds(limits::traffic_burst)));
  CHECK(static_cast<double>(bytes) > 1e6 * took_s * 0.3);
}

TEST_CASE("an end with a limit receives no bulk that it does not expect") {
  LinkPair pair(limited(0, 0), limited(0, 1e6));
  const auto received = std::make_shared<Received>();
  net::co_spawn(pair.far_strand, receive(pair.far, received), rethrow);
  net::co_spawn(pair.near_strand, send_bulk(pair.near, Clock::now() + 10s), rethrow);
  pair.io.run_for(300ms);
  CHECK(received->bulk_bytes == 0);
  pair.far->expect_bulk(2 * chunk_bytes);
  const TimePoint latest = Clock::now() + 10s;
  while (received->bulk_bytes < 2 * chunk_bytes && Clock::now() < latest) pair.io.run_for(10ms);
  pair.io.run_for(300ms);
  CHECK(received->bulk_bytes == 2 * chunk_bytes);
}

TEST_CASE("with limits at both ends the lower one holds") {
  LinkPair pair(limited(4e6, 4e6), limited(4e6, 1e6));
  check_limited(run(pair, 2s), 1e6, 2, chunk_bytes);
}

/// Changes a limit while bulk passes, and lets that settle. Returns what then comes in a second.
std::uint64_t bytes_after(LinkPair& pair, const Received& received, Governor& governor,
                          double rate) {
  governor.change(rate > 0 ? RateSchedule(rate) : RateSchedule());
  pair.io.run_for(1500ms);
  const std::uint64_t before = received.bulk_bytes;
  pair.io.run_for(1s);
  return received.bulk_bytes - before;
}

TEST_CASE("a limit that changes while bulk passes holds for it") {
  for (const bool at_the_sender : {true, false}) {
    CAPTURE(at_the_sender);
    const auto governor = std::make_shared<Governor>(RateSchedule());
    Governors of_client;
    Governors of_server;
    (at_the_sender ? of_client.up : of_server.down) = governor;
    LinkPair pair(of_client, of_server);
    CHECK(pair.near->payload_room() == limits::chunk_bytes_max);
    const auto received = std::make_shared<Received>();
    pair.far->expect_bulk(1ull << 40);
    net::co_spawn(pair.far_strand, receive(pair.far, received), rethrow);
    net::co_spawn(pair.near_strand, send_bulk(pair.near, Clock::now() + 60s), rethrow);
    pair.io.run_for(500ms);
    CHECK(received->bulk_bytes > 1'500'000);
    const std::uint64_t slow = bytes_after(pair, *received, *governor, 0.5e6);
    CHECK(slow < 1e6);
    CHECK(slow > 0.1e6);
    const std::uint64_t crawling = bytes_after(pair, *received, *governor, 1000);
    CHECK(crawling <= 2 * chunk_bytes);  // Each waits a minute.
    CHECK(bytes_after(pair, *received, *governor, 4e6) > 1.2e6);
    CHECK(bytes_after(pair, *received, *governor, 0) > 4e6);
  }
}

TEST_CASE("without limits nothing is slowed down") {
  LinkPair pair(limited(0, 0), limited(0, 0));
  CHECK(run(pair, 500ms).bulk_bytes > 1'500'000);  // At the rate above there were 500,000.
}

}  // namespace
}  // namespace fl::test
