// SPDX-License-Identifier: Apache-2.0
// MemoryLink, the link of the simulation: it keeps the contract of Link, and its faults do what
// their names say.
#include "shared/base/limits.hpp"
#include "tests/support/memory_link.hpp"
#include "tests/support/print_result.hpp"
#include "tests/wire/simulation.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace fl::test {
namespace {

using namespace std::chrono_literals;

struct Pair : Simulation {
  explicit Pair(Line line = {}) {
    std::tie(near, far) = MemoryLink::make({io.get_executor(), "far", line},
                                           {io.get_executor(), "near", Line()}, nullptr);
  }
  std::shared_ptr<MemoryLink> near;
  std::shared_ptr<MemoryLink> far;
};

Message chunk(std::uint64_t offset, std::size_t bytes) {
  const auto content = std::make_shared<std::string>(bytes, 'x');
  wire::Header header;
  header.mutable_chunk()->set_offset(offset);
  return Message(header, Payload(content, bytes_of(std::string_view(*content))));
}

Message control(std::uint32_t version) {
  wire::Header header;
  header.mutable_evaluate()->set_version(version);
  return Message(header);
}

Awaitable<void> send(std::shared_ptr<MemoryLink> link, Message message,
                     std::vector<Result<void>>& sent) {
  sent.push_back(co_await link->send(std::move(message)));
}

/// Adds to `got` what arrives until the link ends ("chunk 0", "evaluate 1"), then the last error.
Awaitable<void> read(std::shared_ptr<MemoryLink> link, std::vector<std::string>& got) {
  for (;;) {
    auto message = co_await link->receive();
    if (!message) {
      got.push_back(message.error().message());
      co_return;
    }
    const auto& header = message->header;
    got.push_back(header.has_chunk() ? "chunk " + std::to_string(header.chunk().offset())
                                     : "evaluate " + std::to_string(header.evaluate().version()));
  }
}

Awaitable<void> close_after(std::shared_ptr<MemoryLink> link, Duration pause) {
  co_await sleep_for(pause);
  link->close();
}

TEST_CASE(
    "control overtakes bulk that waits for the line; bulk never overtakes control; each keeps its "
    "order") {
  Line slow;
  slow.bytes_per_s = 100e3;
  Pair pair(slow);
  std::vector<Result<void>> sent;
  std::vector<std::string> got;
  for (std::uint64_t i = 0; i < 4; ++i) pair.spawn(send(pair.near, chunk(i, 300'000), sent));
  for (std::uint32_t i = 0; i < 2; ++i) pair.spawn(send(pair.near, control(i), sent));
  pair.spawn(read(pair.far, got));
  pair.spawn(close_after(pair.near, 100s));
  pair.run();
  CHECK(got == std::vector<std::string>{"chunk 0", "evaluate 0", "evaluate 1", "chunk 1", "chunk 2",
                                        "chunk 3", "the peer closed the connection"});
  CHECK(sent.size() == 6);
  CHECK(pair.near->bytes_sent() == pair.far->bytes_received());
  CHECK(pair.near->bytes_sent() > 4 * 300'000);
}

TEST_CASE("close() first sends what was queued; later sends are unavailable") {
  Pair pair;
  std::vector<Result<void>> sent;
  std::vector<std::string> got;
  pair.spawn(send(pair.near, chunk(0, 1000), sent));
  pair.spawn(send(pair.near, control(1), sent));
  pair.spawn(read(pair.far, got));
  pair.spawn(close_after(pair.near, 0s));
  pair.run();
  CHECK(got == std::vector<std::string>{"chunk 0", "evaluate 1", "the peer closed the connection"});
  pair.spawn(send(pair.near, control(2), sent));
  pair.run();
  REQUIRE(!sent.back());
  CHECK(sent.back().error().code() == Errc::unavailable);
}

TEST_CASE("a sender waits for a peer that does not read; too many waiting sends end the link") {
  Pair pair;
  std::vector<Result<void>> sent;
  for (std::uint64_t i = 0; i < 5; ++i) pair.spawn(send(pair.near, chunk(i, 400'000), sent));
  pair.time.step(pair.io);
  pair.time.step(pair.io);
  CHECK(sent.size() == 2);  // The window has room for two.
  for (std::size_t i = 0; i < limits::outbox_messages_max; ++i)
    pair.spawn(send(pair.near, chunk(i, 10), sent));
  pair.run();
  REQUIRE(!sent.back());
  CHECK(sent.back().error().message() == "the peer does not read: 64 messages wait");
}

TEST_CASE("a broken line loses what is on the way; a silent line is noticed after the limit") {
  for (const bool breaks : {true, false}) {
    Pair pair;
    std::vector<Result<void>> sent;
    std::vector<std::string> got;
    std::vector<std::string> answers;
    pair.spawn(read(pair.far, got));
    pair.spawn(read(pair.near, answers));
    pair.spawn(send(pair.near, control(1), sent));
    pair.io.poll();
    breaks ? pair.near->cut() : pair.near->fall_silent();
    pair.run();
    const std::string reason = breaks ? "the connection broke" : "no answer from the peer for 60 s";
    CHECK(got == std::vector<std::string>{reason});
    CHECK(answers == std::vector<std::string>{reason});
    CHECK((pair.time.elapsed() >= limits::liveness_max) == !breaks);
  }
}

TEST_CASE("each lie does what its name says") {
  const auto received = [](Lie lie) {
    Line line;
    line.lie = lie;
    line.lie_at_chunk = 1;
    Pair pair(line);
    std::vector<Result<void>> sent;
    std::vector<std::string> got;
    for (std::uint64_t i = 0; i < 4; ++i) pair.spawn(send(pair.near, chunk(i, 10), sent));
    pair.spawn(read(pair.far, got));
    pair.spawn(close_after(pair.near, 1s));
    pair.run();
    got.pop_back();
    std::string text;
    for (const auto& item : got) text += item.back();
    return text;
  };
  CHECK(received(Lie::none) == "0123");
  CHECK(received(Lie::duplicate) == "01123");
  CHECK(received(Lie::drop) == "023");
  CHECK(received(Lie::swap) == "0213");
  CHECK(received(Lie::flip) == "0123");
  CHECK(received(Lie::lengthen) == "0123");
}

}  // namespace
}  // namespace fl::test
