// SPDX-License-Identifier: Apache-2.0
// Peers send under one limit for all of them together: on simulated time,
// over lines with a speed and a way there and back.
#include "shared/net/peer_credit.hpp"
#include "shared/base/async/mailbox.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace fl {
namespace {

using namespace std::chrono_literals;

constexpr double rate = 2.5e6;  // 20 Mbit/s.
constexpr std::uint64_t header_bytes = 20;

struct Piece {
  TimePoint at;
  std::uint64_t bytes;
};

/// One peer: how many bytes it has to send, and how.
struct Sender {
  std::uint64_t bytes = 0;
  Duration trip = 25ms;  // One way.
  double line_bytes_per_s = 125e6;
  std::uint64_t chunk_bytes = 0;      // 0: what it has credit for, from 64 KiB to 1 MiB.
  std::uint64_t leaves_after = 1e18;  // After these bytes it breaks the connection.
};

/// A connection: the peer, and our end with its credit.
struct Connection {
  Connection(net::io_context& context, Governor& limit, Sender of_peer)
      : io(context),
        governor(limit),
        sender(of_peer),
        near(context.get_executor()),
        far(context.get_executor()) {}

  [[nodiscard]] std::uint64_t next_chunk() const {
    const auto fits =
        std::clamp<std::int64_t>(peer_has, limits::chunk_bytes_min, limits::chunk_bytes_max);
    const auto bytes = sender.chunk_bytes ? sender.chunk_bytes : static_cast<std::uint64_t>(fits);
    return std::min(bytes, sender.bytes - sent);
  }

  net::io_context& io;
  Governor& governor;
  Sender sender;
  Signal near;
  Signal far;
  PeerCredit credit;
  std::vector<Piece> log;     // The messages that the peer sent.
  std::uint64_t sent = 0;     // Payload.
  std::uint64_t granted = 0;  // Bytes that we granted.
  std::int64_t peer_has = 0;  // The credit that has reached the peer, minus the bytes that it sent.
  std::int64_t hoard_max = 0;  // The most that it ever had.
  bool is_down = false;
};
using Connected = std::shared_ptr<Connection>;

Awaitable<void> give(Connected one, std::uint64_t bytes) {
  co_await sleep_for(one->sender.trip);
  one->peer_has += static_cast<std::int64_t>(bytes);
  one->hoard_max = std::max(one->hoard_max, one->peer_has);
  one->far.notify();
}

/// Our end: as WsLink grants credit.
Awaitable<void> grant(Connected one) {
  while (!one->is_down) {
    const TimePoint turn = one->credit.advance(one->governor);
    if (const std::uint64_t bytes = one->credit.take(); bytes > 0) {
      one->granted += bytes;
      net::co_spawn(one->io, give(one, bytes), rethrow);
    }
    co_await one->near.wait(turn);
  }
  one->governor.charge(one->credit.unpaid());
}

Awaitable<void> arrive(Connected one, std::uint64_t payload_bytes) {
  co_await sleep_for(one->sender.trip);
  one->credit.receive(payload_bytes + header_bytes, payload_bytes);
  one->near.notify();
}

/// The peer's end.
Awaitable<void> send(Connected one) {
  while (one->sent < one->sender.bytes && one->sent < one->sender.leaves_after) {
    const std::uint64_t bytes = one->next_chunk();
    while (one->peer_has <= 0) co_await one->far.wait();
    const double takes = static_cast<double>(bytes) / one->sender.line_bytes_per_s;
    co_await sleep_for(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(takes)));
    one->sent += bytes;
    one->peer_has -= static_cast<std::int64_t>(bytes + header_bytes);
    one->log.push_back({Clock::now(), bytes + header_bytes});
    net::co_spawn(one->io, arrive(one, bytes), rethrow);
  }
  if (one->sent == one->sender.bytes) co_return;
  one->is_down = true;
  one->near.notify();
}

/// Peers with one limit, who begin at the same time.
struct World {
  explicit World(double bytes_per_s = rate) : governor(RateSchedule(bytes_per_s)) {}

  Connected add(const Sender& sender) {
    peers.push_back(std::make_shared<Connection>(io, governor, sender));
    return peers.back();
  }
  /// A transfer of each peer. Returns when nothing happens any more.
  void run() {
    begin = Clock::now();
    for (const auto& one : peers) {
      one->credit.expect(one->sender.bytes - one->sent);
      net::co_spawn(io, grant(one), rethrow);
      net::co_spawn(io, send(one), rethrow);
    }
    while (time.step(io)) continue;
  }
  [[nodiscard]] std::vector<Piece> log() const {
    std::vector<Piece> all;
    for (const auto& one : peers) all.insert(all.end(), one->log.begin(), one->log.end());
    std::ranges::stable_sort(all, {}, &Piece::at);
    return all;
  }
  /// The most that came in any window of this length.
  [[nodiscard]] double most_in(Duration window) const {
    const auto all = log();
    std::uint64_t most = 0, within = 0;
    auto first = all.begin();
    for (const Piece& last : all) {
      within += last.bytes;
      for (; first->at + window < last.at; ++first) within -= first->bytes;
      most = std::max(most, within);
    }
    return static_cast<double>(most);
  }
  [[nodiscard]] double took_s(const Connected& one) const {
    REQUIRE(one->sent == one->sender.bytes);
    return seconds(one->log.back().at - begin);
  }
  [[nodiscard]] double took_s() const { return seconds(log().back().at - begin); }

  SimulatedTime time;
  net::io_context io;
  Governor governor;
  std::vector<Connected> peers;
  TimePoint begin{};
};

TEST_CASE("one limit holds for one peer, for ten, and for a hundred together") {
  for (const std::uint64_t count : {1U, 3U, 10U, 100U}) {
    CAPTURE(count);
    World world;
    for (std::uint64_t i = 0; i < count; ++i)
      world.add(
          {.bytes = static_cast<std::uint64_t>(30 * rate) / count, .trip = 1ms * (1 + i % 50)});
    world.run();
    CHECK(world.most_in(10s) < 10 * rate * 1.05);
    CHECK(world.most_in(1s) < rate * 1.25);
    CHECK(world.took_s() > 30 / 1.05);
    CHECK(world.took_s() < 30 * 1.05);
    for (const auto& one : world.peers)
      CHECK(world.took_s(one) > 25);  // Equal shares, to a chunk or two.
  }
}

TEST_CASE("a distant peer alone has the whole rate") {
  struct Row {
    double rate;
    Duration trip;
    double begins_s;  // Until it is known how far it must be ahead.
  };
  // A way there and back of 50 ms at 20 Mbit/s and at 1 Gbit/s, and of 600 ms.
  for (const Row& row : {Row{2.5e6, 25ms, 0.1}, {125e6, 25ms, 0.5}, {2.5e6, 300ms, 5}}) {
    CAPTURE(row.rate);
    CAPTURE(seconds(row.trip));
    World world(row.rate);
    const auto one = world.add({.bytes = static_cast<std::uint64_t>(30 * row.rate),
                                .trip = row.trip,
                                .line_bytes_per_s = 1.25e9});
    world.run();
    CHECK(world.took_s(one) < 30.1 + row.begins_s);
    CHECK(world.most_in(10s) < 10 * row.rate * 1.05);
  }
}

TEST_CASE("slow peers do not hold what a fast one can use") {
  World world;
  for (int i = 0; i < 20; ++i) world.add({.bytes = 300'000, .line_bytes_per_s = 10e3});
  const auto fast = world.add({.bytes = static_cast<std::uint64_t>(20 * rate)});
  world.run();
  // The slow ones take 200 kB/s, and at the beginning what each may be ahead, once.
  const double ahead = 20.0 * limits::traffic_ahead_bytes_min;
  CHECK(world.took_s(fast) < (20 * rate + ahead) / (rate - 200e3) * 1.02);
  for (std::size_t i = 0; i < 20; ++i) {
    CHECK(world.peers[i]->hoard_max <= static_cast<std::int64_t>(limits::traffic_ahead_bytes_min));
    CHECK(world.took_s(world.peers[i]) < 31);
  }
}

TEST_CASE("peers that leave with credit hold up nobody") {
  World world;
  for (int i = 0; i < 10; ++i) world.add({.bytes = 10'000'000, .leaves_after = 500'000});
  const auto left = world.add({.bytes = static_cast<std::uint64_t>(10 * rate)});
  world.run();
  // The bytes of the others have passed, and their unused credit is lost.
  const double lost = 10.0 * limits::traffic_ahead_bytes_min;
  CHECK(world.took_s(left) < (10 * rate + 10 * 600e3 + lost) / rate * 1.02);
  CHECK(world.most_in(10s) < 10 * rate * 1.05);
}

TEST_CASE("a peer gets no more credit than is expected, and unused credit is not given again") {
  SimulatedTime time;
  Governor governor(RateSchedule(1e9));
  PeerCredit credit;
  CHECK(credit.advance(governor) == never);
  CHECK(credit.take() == 0);
  const auto taken = [&] {
    CHECK(credit.advance(governor) == never);
    return credit.take();
  };
  credit.expect(10'000);
  CHECK(taken() == 10'000);
  CHECK(taken() == 0);
  credit.expect(10'000);  // It has sent nothing.
  CHECK(taken() == 0);
  credit.expect(30'000);
  CHECK(taken() == 20'000);
  credit.receive(10'020, 10'000);  // The header takes credit, too.
  CHECK(taken() == 20);
  credit.receive(20'020, 20'000);
  CHECK(taken() == 20);
  credit.expect(1 << 30);
  CHECK(taken() == limits::traffic_ahead_bytes_min);
}

TEST_CASE("how far a peer may be ahead follows what came from it lately") {
  SimulatedTime time;
  net::io_context io;
  PeerCredit credit;
  const auto least = limits::traffic_ahead_bytes_min;
  const auto wait = [&](Duration duration) {
    net::co_spawn(io, sleep_for(duration), rethrow);
    while (time.step(io)) continue;
  };
  credit.expect(1 << 30);
  CHECK(credit.ahead_max() == least);
  wait(1s);
  credit.receive(400'000, 400'000);  // From now on.
  wait(100ms);
  credit.receive(400'000, 400'000);
  CHECK(credit.ahead_max() == least);  // Not measured yet.
  wait(300ms);
  credit.receive(400'000, 400'000);
  CHECK(credit.ahead_max() == 2'000'000 + limits::chunk_bytes_min);
  wait(1h);
  credit.expect(1 << 30);  // The pause between two transfers does not count.
  wait(1s);
  credit.receive(400'000, 400'000);
  CHECK(credit.ahead_max() == 2'000'000 + limits::chunk_bytes_min);
  wait(250ms);
  credit.receive(400'000, 400'000);
  CHECK(credit.ahead_max() == 1'600'000 + limits::chunk_bytes_min);
  wait(10s);
  credit.receive(400'000, 400'000);
  CHECK(credit.ahead_max() == least);
}

TEST_CASE("what a peer sends beyond its credit is made up for") {
  // As a peer of an older version, whose chunks don't fit its credit.
  World world;
  for (int i = 0; i < 10; ++i)
    world.add({.bytes = static_cast<std::uint64_t>(6 * rate), .chunk_bytes = 1 << 20});
  world.run();
  CHECK(world.took_s() > 60 / 1.05 - 10.0 * (1 << 20) / rate);
  CHECK(world.took_s() < 60 * 1.05);
}

TEST_CASE("a connection that ends pays for what it has not reserved") {
  SimulatedTime time;
  Governor governor(RateSchedule(1e6));
  PeerCredit credit;
  credit.receive(5'000'000, 5'000'000);
  CHECK(credit.unpaid() == 5'000'000);
  CHECK(credit.advance(governor) > Clock::now());  // The burst is reserved by now.
  CHECK(credit.unpaid() == 5'000'000 - 3 * limits::chunk_bytes_min);
}

}  // namespace
}  // namespace fl
