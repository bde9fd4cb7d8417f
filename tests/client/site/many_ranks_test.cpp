// SPDX-License-Identifier: Apache-2.0
// A hub with many ranks, and with ranks and strangers that hold things up.
#include "client/learn/process/json_line.hpp"
#include "client/learn/process/tcp.hpp"
#include "client/site/hub.hpp"
#include "client/site/rank_link.hpp"
#include "client/site/rank_port.hpp"
#include "client/site/rendezvous_store.hpp"
#include "client/site/site_handshake.hpp"
#include "client/site/site_messages.hpp"
#include "shared/base/io/files_max.hpp"
#include "shared/base/limits.hpp"
#include "tests/client/site/rank_options.hpp"
#include "tests/support/allocated_bytes.hpp"

#include <doctest/doctest.h>

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace fl::test {

using namespace fl::site;
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr auto long_enough = 60s;

TimePoint in_time() { return Clock::now() + long_enough; }

SiteHub::Options options_of(int size) {
  SiteHub::Options options;
  options.host = "127.0.0.1";
  options.secret = site_secret;
  options.size = size;
  options.silence = long_enough;
  options.collective = long_enough;
  return options;
}

/// A rank's end of a connection, without a thread.
std::unique_ptr<SocketLine> enter_line(std::uint16_t port, int rank, int size) {
  auto line =
      std::make_unique<SocketLine>(connect_tcp("127.0.0.1", port, in_time()).value(), "the agent");
  REQUIRE(greet_agent(*line, site_secret, in_time()).has_value());
  SiteMember self;
  self.rank = rank;
  REQUIRE(send_json(*line, rank_hello(self, size), in_time()));
  REQUIRE(member_text(receive_json(*line, long_enough).value().value(), "type") == "welcome");
  return line;
}

std::unique_ptr<RankLink> enter_link(const SiteHub& hub, int rank, int size) {
  return RankLink::connect(rank_options(hub, rank, size, long_enough, in_time())).value();
}

/// A message to the store, which answers once the key is there.
json waiting_get(const std::string& key, std::uint64_t id) {
  return {{"type", "get"}, {"key", key}, {"id", id}, {"wait", 1U}};
}

/// The next message that is no sign of life.
json next_of(SocketLine& line) {
  for (;;) {
    json message = receive_json(line, long_enough).value().value();
    if (member_text(message, "type") != "alive") return message;
  }
}

std::ptrdiff_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

}  // namespace

TEST_CASE("two thousand ranks are served by two threads") {
  constexpr int size = 2000;
  constexpr std::uint64_t files_needed = 2 * size + 100;  // Both ends are of this process.
  if (const auto files = raise_files_max(); files < files_needed) {
    MESSAGE("SKIPPED: this needs ", files_needed, " open files, and the process may have ", files);
    return;
  }
  const auto threads_before = threads_of_this_process();
  const auto hub = SiteHub::open(options_of(size)).value();
  std::vector<std::unique_ptr<SocketLine>> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(enter_line(hub->port(), rank, size));
  CHECK(hub->wait_for(size, in_time(), {}).size() == size);
  CHECK(threads_of_this_process() == threads_before + 2);

  // They meet: all but the first wait for its value.
  for (int rank = 1; rank < size; ++rank) {
    const json get{{"type", "get"}, {"key", "address"}, {"id", rank}, {"wait", 1U}};
    CHECK(send_json(*ranks[static_cast<std::size_t>(rank)], get, in_time()));
  }
  const json set{{"type", "set"}, {"key", "address"}, {"value", "here"}};
  CHECK(send_json(*ranks[0], set, in_time()));
  for (int rank = 1; rank < size; ++rank) {
    const json told = next_of(*ranks[static_cast<std::size_t>(rank)]);
    CHECK(member_text(told, "value") == "here");
    CHECK(member_integer(told, "id") == rank);
  }

  std::vector<SiteHub::Request> requests;
  for (int rank = 0; rank < size; ++rank) requests.push_back({rank, {{"type", "work"}}});
  std::thread working([&] {
    for (int rank = 0; rank < size; ++rank) {
      SocketLine& line = *ranks[static_cast<std::size_t>(rank)];
      const json request = next_of(line);
      if (rank == 7) {
        line.shut();
        continue;
      }
      const json done{{"type", "done"}, {"id", request.at("id")}, {"number", rank}};
      CHECK(send_json(line, done, in_time()));
    }
  });
  const auto answers = hub->ask(requests, {});
  working.join();
  for (int rank = 0; rank < size; ++rank) {
    const auto& answer = answers[static_cast<std::size_t>(rank)];
    if (rank == 7) {
      CHECK(answer.error().code() == Errc::unavailable);
    } else {
      CHECK(member_integer(answer.value(), "number") == rank);
    }
  }
  CHECK(hub->members().size() == size - 1);
  hub->end_ranks();  // Otherwise the log names each as lost.
}

TEST_CASE("a rank that does not read is lost, and the others are served meanwhile") {
  constexpr std::size_t unsent_max = 4 << 20;
  SiteHub::Options options = options_of(2);
  options.unsent_bytes_max = unsent_max;
  const auto hub = SiteHub::open(std::move(options)).value();
  const auto reading = enter_link(*hub, 0, 2);
  const auto deaf = enter_line(hub->port(), 1, 2);
  reading->set("large", std::string(unsent_max / 16, 'x'));
  const json get{{"type", "get"}, {"key", "bGFyZ2U"}, {"id", 1}, {"wait", 1U}};  // "large"
  int asked = 0;
  while (hub->members().size() == 2 && asked < 150) {
    static_cast<void>(send_json(*deaf, get, in_time()));  // It may have been ended.
    ++asked;
    CHECK(reading->add("calls", 1, in_time()).value() == asked);
  }
  CHECK(hub->members().size() == 1);
  CHECK(asked >= 12);  // So much has room, a third larger by its encoding.
}

TEST_CASE("a stranger that says little at a time has no more time than others") {
  SiteHub::Options options = options_of(1);
  options.greeting = 500ms;
  const auto hub = SiteHub::open(std::move(options)).value();
  const Descriptor slow = connect_tcp("127.0.0.1", hub->port(), in_time()).value();
  const TimePoint begin = Clock::now();
  std::thread dripping([&] {
    // A line without an end, in pieces.
    while (Clock::now() < begin + 10s && ::send(slow.number(), " ", 1, MSG_NOSIGNAL) == 1)
      std::this_thread::sleep_for(10ms);
  });
  const auto rank = enter_link(*hub, 0, 1);
  dripping.join();
  CHECK(Clock::now() < begin + 5s);
  CHECK(Clock::now() >= begin + 400ms);
  CHECK(hub->members().size() == 1);
}

TEST_CASE("what follows from a rank's loss holds up no other rank") {
  SiteHub::Options options = options_of(2);
  std::atomic<bool> may_go_on = false;
  options.on_lost = [&may_go_on](int) {
    while (!may_go_on) std::this_thread::sleep_for(1ms);
  };
  const auto hub = SiteHub::open(std::move(options)).value();
  const auto staying = enter_link(*hub, 0, 2);
  auto leaving = enter_link(*hub, 1, 2);
  leaving.reset();
  while (hub->members().size() == 2) std::this_thread::sleep_for(1ms);
  CHECK(staying->add("calls", 1, in_time()).value() == 1);
  may_go_on = true;
}

TEST_CASE("a value goes to those who wait for it, in their order, and not to those who have left") {
  RendezvousStore store(limits::rank_store_bytes_max);
  std::vector<std::pair<RendezvousStore::Asker, json>> replies;
  const auto use = [&](std::uint64_t asker, const char* type, const json& message) {
    const auto keep = [&](std::uint64_t to, const json& told) { replies.emplace_back(to, told); };
    CHECK(store.use(asker, type, message, keep).has_value());
  };
  for (const std::uint64_t asker : {3U, 1U, 2U}) use(asker, "get", waiting_get("a", asker));
  CHECK(replies.empty());
  store.forget(1);
  use(9, "add", {{"key", "a"}, {"amount", 5}, {"id", 7}});
  REQUIRE(replies.size() == 3);
  CHECK(replies[0].first == 3);
  CHECK(replies[1].first == 2);
  CHECK(member_text(replies[1].second, "value") == counter_text(5));
  CHECK(replies[2].first == 9);
  CHECK(member_integer(replies[2].second, "sum") == 5);
  store.clear();
  use(3, "get", waiting_get("a", 3));
  CHECK(replies.size() == 3);
}

TEST_CASE("the site's store keeps no more than its limits allow, and says which was passed") {
  constexpr std::size_t bytes_max = 10'000;
  RendezvousStore store(bytes_max);
  const auto refusal = [&](const char* type, const json& message) {
    const auto used = store.use(1, type, message, [](std::uint64_t, const json&) {});
    if (used) return std::string();
    CHECK(used.error().code() == Errc::too_large);
    return used.error().message();
  };
  const auto set = [&](const std::string& key, std::size_t bytes) {
    return refusal("set", {{"key", key}, {"value", std::string(bytes, 'x')}});
  };
  CHECK(set("a", limits::rank_value_bytes_max + 1).find("a value of 1048577 bytes") !=
        std::string::npos);
  const std::string long_key(limits::rank_key_bytes_max + 1, 'k');
  CHECK(refusal("get", waiting_get(long_key, 1)).find("a key of 4097 bytes") != std::string::npos);

  // A value that is replaced or deleted counts no longer.
  for (int i = 0; i < 3; ++i) CHECK(set("a", bytes_max - 1).empty());
  CHECK(set("b", 0).find("10001 bytes; the limit is 10000") != std::string::npos);
  CHECK(refusal("add", {{"key", "counter"}, {"amount", 1}}).find("bytes") != std::string::npos);
  CHECK(refusal("delete", {{"key", "a"}}).empty());
  CHECK(set("b", bytes_max - 1).empty());
  store.clear();
  CHECK(set("c", bytes_max - 1).empty());

  // Nor does a wait that has its answer, or whose rank has left.
  const auto fill = [&] {
    for (std::size_t i = 0; i < limits::rank_waits_max; ++i)
      CHECK(refusal("get", waiting_get("later", i)).empty());
    CHECK(refusal("get", waiting_get("later", 0)).find("257 waits") != std::string::npos);
  };
  store.clear();
  fill();
  store.forget(1);
  fill();
  CHECK(set("later", 1).empty());
  CHECK(refusal("delete", {{"key", "later"}}).empty());
  fill();
}

TEST_CASE("a rank that asks the site's store to keep too much is lost, and the reason is told") {
  const auto hub = SiteHub::open(options_of(2)).value();
  const auto staying = enter_link(*hub, 0, 2);
  const auto greedy = enter_line(hub->port(), 1, 2);
  const json set{{"type", "set"},
                 {"key", "large"},
                 {"value", std::string(limits::rank_value_bytes_max + 1, 'x')}};
  CHECK(send_json(*greedy, set, in_time()));
  while (hub->members().size() == 2) std::this_thread::sleep_for(1ms);
  CHECK(staying->add("calls", 1, in_time()).value() == 1);
}

TEST_CASE("what is queued for a rank before any of it is sent has a limit, too") {
  constexpr std::size_t line_bytes = 256 << 10;
  constexpr std::size_t unsent_max = 4 * line_bytes;
  std::size_t kept = 0;
  std::promise<std::string> reason;
  std::unique_ptr<RankPort> port;
  RankPort::Events events;
  events.entered = [&](const RankPort::Peer& peer) -> Result<void> {
    port->send(peer.id, {{"type", "welcome"}});
    return {};
  };
  events.said = [&](const RankPort::Peer& peer, const json&) -> Result<void> {
    const std::size_t before = allocated_bytes();
    for (int i = 0; i < 100; ++i) port->send(peer.id, {{"x", std::string(line_bytes, 'x')}});
    kept = allocated_bytes() - before;
    return {};
  };
  events.left = [&](const RankPort::Peer&, const Error& error) {
    reason.set_value(error.message());
  };
  port =
      RankPort::open({.host = "127.0.0.1", .secret = site_secret, .unsent_bytes_max = unsent_max},
                     std::move(events))
          .value();
  const auto rank = enter_line(port->port(), 0, 1);
  CHECK(send_json(*rank, {{"type", "anything"}}, in_time()));
  CHECK(reason.get_future().get().find("it does not read") != std::string::npos);
  CHECK(kept < 2 * unsent_max);
}

}  // namespace fl::test
