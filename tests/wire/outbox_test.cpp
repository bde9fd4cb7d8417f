// SPDX-License-Identifier: Apache-2.0
// Which message of a link may go next, and what a peer may send: order, credit, limits.
#include "shared/wire/outbox.hpp"

#include "shared/base/limits.hpp"
#include "shared/wire/receive_limit.hpp"
#include "tests/wire/simulation.hpp"

#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <string>

namespace fl::test {
namespace {

constexpr std::size_t bulk_bytes = 100'000;

std::shared_ptr<Outgoing> control(std::string head) {
  return std::make_shared<Outgoing>(std::move(head), Payload());
}

std::shared_ptr<Outgoing> bulk(std::string head) {
  static const std::array<std::byte, bulk_bytes> bytes{};
  return std::make_shared<Outgoing>(std::move(head), Payload(nullptr, Bytes(bytes)));
}

std::shared_ptr<Governor> governor(double bytes_per_s) {
  return std::make_shared<Governor>(RateSchedule(bytes_per_s));
}

/// Takes out the first message and counts it as sent; returns its header.
std::string send_first(Outbox& outbox) {
  const auto message = outbox.pop();
  outbox.count_sent(*message, message->bytes());
  return message->header;
}

TEST_CASE("control messages go before bulk, each in the order in which they came") {
  Outbox outbox(nullptr);
  CHECK(outbox.empty());
  for (const auto& message : {bulk("b1"), control("c1"), bulk("b2"), control("c2")})
    REQUIRE(outbox.push(message).has_value());
  for (const char* const expected : {"c1", "c2", "b1", "b2"}) {
    CHECK(outbox.wait() == std::nullopt);
    CHECK(send_first(outbox) == expected);
  }
  CHECK(outbox.empty());
}

TEST_CASE("a queue is full when the peer does not read; the other one is not") {
  Outbox outbox(nullptr);
  for (std::size_t i = 0; i < limits::outbox_messages_max; ++i)
    REQUIRE(outbox.push(bulk("b")).has_value());
  CHECK(outbox.push(bulk("b")).error().code() == Errc::unavailable);
  CHECK(outbox.push(control("c")).has_value());
}

TEST_CASE("bulk waits for the peer's credit, control messages do not") {
  Outbox outbox(nullptr);
  CHECK(outbox.payload_room() == limits::chunk_bytes_max);
  REQUIRE(outbox.push(bulk("b1")).has_value());
  outbox.take_credit(0);
  CHECK(outbox.payload_room() == limits::chunk_bytes_min);
  CHECK(outbox.wait() == never);
  REQUIRE(outbox.push(control("c1")).has_value());
  CHECK(outbox.wait() == std::nullopt);
  CHECK(send_first(outbox) == "c1");
  CHECK(outbox.wait() == never);
  outbox.take_credit(bulk_bytes + 2);
  CHECK(outbox.wait() == std::nullopt);
  CHECK(send_first(outbox) == "b1");
  REQUIRE(outbox.push(bulk("b2")).has_value());
  CHECK(outbox.wait() == never);
  outbox.take_credit(1ull << 63);
  outbox.take_credit(1ull << 63);
  CHECK(outbox.payload_room() == limits::chunk_bytes_max);
}

Awaitable<void> send_all(Outbox& outbox, std::size_t& sent) {
  while (!outbox.empty()) {
    if (const auto until = outbox.wait()) {
      co_await sleep_until(*until);
      continue;
    }
    send_first(outbox);
    ++sent;
  }
}

TEST_CASE("bulk waits for its turn at the limit, and the turns go on from message to message") {
  Simulation simulation;
  Outbox outbox(governor(bulk_bytes));
  for (int i = 0; i < 5; ++i) REQUIRE(outbox.push(bulk("b")).has_value());
  std::size_t sent = 0;
  simulation.spawn(send_all(outbox, sent));
  simulation.run();
  CHECK(sent == 5);
  CHECK(seconds(simulation.time.elapsed()) == doctest::Approx(5).epsilon(0.1));
}

TEST_CASE("a peer needs credit from when there is a limit, and is told so once") {
  const SimulatedTime time;
  const auto limit = std::make_shared<Governor>(RateSchedule());
  ReceiveLimit receive(limit);
  receive.expect(1'000'000);
  CHECK_FALSE(receive.begins());
  receive.receive(bulk_bytes + 2, bulk_bytes);
  CHECK_FALSE(receive.is_needed());
  limit->change(RateSchedule(1e6));
  CHECK(receive.begins());
  CHECK_FALSE(receive.begins());
  CHECK(receive.is_needed());
  CHECK(receive.grant().bytes <= limits::traffic_ahead_bytes_min);
  limit->change(RateSchedule());
  CHECK(receive.is_needed());

  ReceiveLimit none(nullptr);
  CHECK_FALSE(none.begins());
  none.receive(bulk_bytes, bulk_bytes);
  none.end();
}

}  // namespace
}  // namespace fl::test
