// SPDX-License-Identifier: Apache-2.0
// The connection between the agent of a site and its ranks: who gets in, the store, requests and
// their answers, and ranks that are lost.
#include "client/site/hub.hpp"

#include "client/learn/process/json_line.hpp"
#include "client/learn/process/tcp.hpp"
#include "client/site/rank_link.hpp"
#include "client/site/site_handshake.hpp"
#include "client/site/site_messages.hpp"
#include "shared/base/limits.hpp"
#include "tests/client/site/rank_options.hpp"

#include <doctest/doctest.h>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <string>
#include <thread>
#include <vector>

namespace fl::test {

using namespace fl::site;
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr auto patience = 20s;

std::unique_ptr<SiteHub> hub_of(int size, Duration progress = patience) {
  SiteHub::Options options;
  options.host = "127.0.0.1";
  options.secret = "secret";
  options.size = size;
  options.silence = patience;
  options.progress = progress;
  options.collective = 100ms;
  options.grace = 100ms;
  return SiteHub::open(std::move(options)).value();
}

RankLink::Options rank_of(const SiteHub& hub, int rank, int size) {
  return rank_options(hub, rank, size, patience, Clock::now());
}

std::unique_ptr<RankLink> enter(const SiteHub& hub, int rank, int size) {
  return RankLink::connect(rank_of(hub, rank, size)).value();
}

std::vector<SiteHub::Request> to_all(int size, const json& message, bool is_common = false) {
  std::vector<SiteHub::Request> requests;
  for (int rank = 0; rank < size; ++rank) requests.push_back({rank, message, is_common});
  return requests;
}

/// Waits for the rank's next request and then, for at most `limit`, until it is told that another
/// rank has failed. Answers with what it was told.
void work_until_told(RankLink& link, Duration limit) {
  REQUIRE(link.next().has_value());
  const TimePoint until = Clock::now() + limit;
  while (!link.abort_switch()->is_on() && Clock::now() < until) std::this_thread::sleep_for(1ms);
  link.answer(json{{"told", link.abort_switch()->reason().value_or("")}});
}

TimePoint soon() { return Clock::now() + patience; }

/// An agent's part of the handshake, until the proof.
Result<void> greet_rank(SocketLine& line, const std::string& secret) {
  auto greeting = RankGreeting::begin(secret, 1).value();
  CHECK(send_json(line, greeting.challenge(), soon()));
  json answer;
  const auto heard = greeting.hear(receive_json(line, patience).value().value(), answer);
  if (!answer.is_null()) CHECK(send_json(line, answer, soon()));
  if (heard) return {};
  return heard.error();
}

}  // namespace

TEST_CASE("a rank whose number is none of the site's is refused, however it is written") {
  SiteMember self;
  self.rank = 1;
  self.host = host_name();
  json hello = rank_hello(self, 2);
  REQUIRE(parse_rank_hello(hello, 2).value().rank == 1);
  // 2^32 + 1 is 1 in 32 bits.
  for (const json& rank : {json(4294967297), json(-1), json(2), json(0.5), json("1"), json()}) {
    CAPTURE(rank);
    hello["rank"] = rank;
    const auto refused = parse_rank_hello(hello, 2);
    REQUIRE(refused.has_error());
    CHECK(refused.error().message().find("ranks count from 0 to 1") != std::string::npos);
  }
}

TEST_CASE("a counter of the site's store that would leave 64 bits, or is none, is an error") {
  const auto hub = hub_of(1);
  const auto rank = enter(*hub, 0, 1);
  CHECK(rank->add("counter", INT64_MAX, soon()).value() == INT64_MAX);
  CHECK(rank->add("counter", 1, soon()).error().message().find("can't add 1") != std::string::npos);
  CHECK(rank->add("counter", -1, soon()).value() == INT64_MAX - 1);
  rank->set("text", "seven");
  CHECK(rank->add("text", 1, soon()).has_error());
}

TEST_CASE("a rank gets in with the site's secret, its size and a number of its own") {
  const auto hub = hub_of(2);
  const auto one = enter(*hub, 1, 2);
  CHECK(hub->wait_for(2, Clock::now() + 50ms, {}).size() == 1);
  const auto zero = enter(*hub, 0, 2);
  const auto members = hub->wait_for(2, soon(), {});
  REQUIRE(members.size() == 2);
  CHECK(members[0].rank == 0);
  CHECK(members[1].rank == 1);
  CHECK(members[1].host == host_name());
  CHECK(members[1].is_here);
  CHECK(to_string(members[1]).starts_with("rank 1 (" + host_name() + ", process "));

  const auto refusal = [&](RankLink::Options options) {
    const auto link = RankLink::connect(options);
    REQUIRE(!link.has_value());
    return link.error();
  };
  auto options = rank_of(*hub, 1, 2);
  options.secret = "other";
  CHECK(refusal(options).code() == Errc::unauthenticated);
  CHECK(refusal(options).message().find("--site-secret-file") != std::string::npos);
  const Error size = refusal(rank_of(*hub, 1, 3));
  CHECK(size.code() == Errc::conflict);
  CHECK(size.message().find("a site of 3 ranks, the agent to one of 2") != std::string::npos);
  CHECK(refusal(rank_of(*hub, 2, 2)).message().find("from 0 to 1") != std::string::npos);
  CHECK(hub->members().size() == 2);
}

TEST_CASE("addresses of this machine alone are known from others") {
  for (const char* host : {"127.0.0.1", "127.0.1.1", "::1", "localhost"}) {
    CAPTURE(std::string(host));
    CHECK(is_loopback(host));
  }
  for (const char* host : {"192.0.2.1", "2001:db8::1", "0.0.0.0", "no-such-host.invalid"}) {
    CAPTURE(std::string(host));
    CHECK_FALSE(is_loopback(host));
  }
}

TEST_CASE("both ends of a connection know the address by which they have met") {
  const auto hub = hub_of(1);
  const auto rank = enter(*hub, 0, 1);
  CHECK(rank->own_address().empty());
  CHECK(hub->members().at(0).agent_address.empty());

  ifaddrs* all = nullptr;
  REQUIRE(::getifaddrs(&all) == 0);
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr,
                text.data(), text.size());
    const std::string address = text.data();
    CAPTURE(address);
    const bool is_for_others = !address.starts_with("127.");
    CHECK(leads_here(address) == is_for_others);
    auto listener = TcpListener::make("", 0).value();
    const auto near = connect_tcp(address, listener.port(), soon()).value();
    const auto far = listener.accept(patience);
    const std::string met = is_for_others ? address : "";
    CHECK(own_address(near.number()) == met);
    CHECK(own_address(far.number()) == met);
  }
  ::freeifaddrs(all);
  for (const char* host : {"127.0.1.1", "localhost", "no-such-host.invalid", "203.0.113.77"}) {
    CAPTURE(std::string(host));
    CHECK_FALSE(leads_here(host));
  }
}

TEST_CASE("an agent without the secret gets no rank") {
  auto listener = TcpListener::make("127.0.0.1", 0).value();
  std::thread agent([&] {
    SocketLine line(listener.accept(patience), "the rank");
    CHECK(!greet_rank(line, "another secret").has_value());
  });
  RankLink::Options options;
  options.host = "127.0.0.1";
  options.port = listener.port();
  options.secret = "secret";
  options.until = Clock::now();
  CHECK(RankLink::connect(options).error().code() == Errc::unauthenticated);
  agent.join();

  // One that does not know it but says so only at the end, as a liar would.
  std::thread liar([&] {
    SocketLine line(listener.accept(patience), "the rank");
    CHECK(line.send(R"({"agent": ")" + std::string(64, 'a') + R"("})", soon()));
    CHECK(line.receive(patience)->has_value());
    CHECK(line.send(R"({"proof": ")" + std::string(64, 'b') + R"("})", soon()));
    CHECK(!line.receive(patience).has_value());
  });
  CHECK(RankLink::connect(options).error().code() == Errc::unauthenticated);
  liar.join();
}

TEST_CASE("what an agent says to a rank with another secret means nothing from a rank") {
  auto greeting = RankGreeting::begin("secret", 1).value();
  json answer;
  const auto greeted = greeting.hear({{"refused", true}}, answer);
  CHECK(answer.is_null());
  REQUIRE(!greeted.has_value());
  CHECK(greeted.error().message() == "the other end is no part of a Tributary site");
}

/// Whether the other end has closed. Reads what it said before.
bool has_ended(const Descriptor& socket) {
  std::array<char, 256> text;
  for (;;) {
    const ssize_t got = ::recv(socket.number(), text.data(), text.size(), MSG_DONTWAIT);
    if (got <= 0) return got == 0 || errno != EAGAIN;
  }
}

TEST_CASE("a rank gets in while strangers hold all places, and they end") {
  const auto hub = hub_of(1);
  std::vector<Descriptor> silent;
  for (std::size_t i = 0; i < 3 * limits::rank_strangers_max; ++i)
    silent.push_back(connect_tcp("127.0.0.1", hub->port(), soon()).value());
  auto options = rank_of(*hub, 0, 1);
  options.until = soon();
  const auto rank = RankLink::connect(options);
  REQUIRE(rank.has_value());
  // Each was ended for a newer one, but those of the places that one address has.
  constexpr std::size_t places = 1 + limits::rank_strangers_max / 2;
  CHECK(std::ranges::count_if(silent, has_ended) >=
        static_cast<std::ptrdiff_t>(silent.size() - places));
  CHECK(hub->members().size() == 1);
}

TEST_CASE("before the proof a line is short, on either side") {
  const auto hub = hub_of(1);
  const std::string flood(2 * limits::rank_greeting_bytes_max, 'x');
  // The line has no end, and the connection ends before its time is over.
  const TimePoint begin = Clock::now();
  const Descriptor stranger = connect_tcp("127.0.0.1", hub->port(), soon()).value();
  static_cast<void>(::send(stranger.number(), flood.data(), flood.size(), MSG_NOSIGNAL));
  while (!has_ended(stranger) && Clock::now() < begin + patience) std::this_thread::sleep_for(1ms);
  CHECK(Clock::now() < begin + limits::rank_greeting / 2);
  CHECK(hub->members().empty());

  auto listener = TcpListener::make("127.0.0.1", 0).value();
  std::thread liar([&] {
    SocketLine line(listener.accept(patience), "the rank");
    static_cast<void>(line.send(flood, soon()));
    static_cast<void>(line.receive(patience));
  });
  RankLink::Options options;
  options.host = "127.0.0.1";
  options.port = listener.port();
  options.secret = "secret";
  options.until = Clock::now();
  CHECK(RankLink::connect(options).error().code() == Errc::too_large);
  liar.join();
}

TEST_CASE("all ranks see the same store") {
  const auto hub = hub_of(2);
  const auto zero = enter(*hub, 0, 2);
  const auto one = enter(*hub, 1, 2);
  const std::string bytes("\0\n\xff{}", 5);
  std::thread later([&] {
    std::this_thread::sleep_for(50ms);
    zero->set("key\n", bytes);
  });
  CHECK(one->get("key\n", soon()).value() == bytes);  // Waits for it.
  later.join();
  CHECK(zero->get("key\n", soon()).value() == bytes);
  CHECK(one->has("key\n", soon()).value());
  CHECK(!one->has("other", soon()).value());
  CHECK(one->get("other", Clock::now() + 50ms).error().code() == Errc::deadline);

  constexpr int times = 100;
  const auto add_up = [](RankLink& link) {
    for (int i = 0; i < times; ++i) CHECK(link.add("sum", 1, soon()).has_value());
  };
  std::thread other([&] { add_up(*one); });
  add_up(*zero);
  other.join();
  CHECK(zero->add("sum", -1, soon()).value() == 2 * times - 1);
  CHECK(zero->get("sum", soon()).value() == std::to_string(2 * times - 1));
  CHECK(one->remove("sum", soon()).value());
  CHECK(!one->remove("sum", soon()).value());
  hub->clear_store();
  CHECK(!one->has("key\n", soon()).value());
}

TEST_CASE("each rank answers what it was asked") {
  const auto hub = hub_of(3);
  std::vector<std::unique_ptr<RankLink>> links;
  for (int rank = 0; rank < 3; ++rank) links.push_back(enter(*hub, rank, 3));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      for (int i = 0; i < 2; ++i) {
        const auto request = links[static_cast<std::size_t>(rank)]->next();
        REQUIRE(request.has_value());
        CHECK(member_text(*request, "type") == "work");
        if (i == 1 && rank == 1) {
          links[1]->answer(Error(Errc::invalid_input, "the loss is nan"));
        } else {
          links[static_cast<std::size_t>(rank)]->answer(json{{"number", rank + 10 * i}});
        }
      }
      CHECK(links[static_cast<std::size_t>(rank)]->next().error().code() == Errc::cancelled);
    });
  }
  const auto first = hub->ask(to_all(3, {{"type", "work"}}), {});
  for (int rank = 0; rank < 3; ++rank)
    CHECK(member_integer(*first[static_cast<std::size_t>(rank)], "number") == rank);
  const auto second = hub->ask(to_all(3, {{"type", "work"}}), {});
  CHECK(second[1].error().code() == Errc::invalid_input);
  CHECK(second[1].error().message().starts_with("rank 1 ("));
  CHECK(second[1].error().message().ends_with("the loss is nan"));
  CHECK(member_integer(*second[2], "number") == 12);
  hub->end_ranks();
  for (auto& rank : ranks) rank.join();
}

TEST_CASE("a stop request reaches the ranks that work, also before they have begun") {
  for (const bool is_late : {false, true}) {
    CAPTURE(is_late);
    const auto hub = hub_of(1);
    const auto link = enter(*hub, 0, 1);
    std::stop_source stop;
    if (!is_late) stop.request_stop();
    std::thread rank([&] {
      if (!is_late) std::this_thread::sleep_for(50ms);
      CHECK(link->next().has_value());
      while (!link->stop_token().stop_requested()) std::this_thread::sleep_for(1ms);
      link->answer(Error(Errc::cancelled, "stopped"));
      CHECK(link->next().has_value());
      CHECK(!link->stop_token().stop_requested());
      link->answer(json::object());
    });
    std::thread stopper([&] {
      std::this_thread::sleep_for(50ms);
      stop.request_stop();
    });
    CHECK(hub->ask(to_all(1, {{"type", "work"}}), stop.get_token())[0].error().code() ==
          Errc::cancelled);
    CHECK(hub->ask(to_all(1, {{"type", "work"}}), {})[0].has_value());
    rank.join();
    stopper.join();
  }
}

TEST_CASE("a rank that is lost is named, and the others may finish") {
  std::atomic<int> lost = -1;
  SiteHub::Options options;
  options.host = "127.0.0.1";
  options.secret = "secret";
  options.size = 3;
  options.silence = 1500ms;
  options.collective = 30s;  // After rank 1 has died; the other's silence ends first.
  options.on_lost = [&lost](int rank) { lost = rank; };
  const auto hub = SiteHub::open(std::move(options)).value();
  const auto working = enter(*hub, 0, 3);
  auto dying = enter(*hub, 1, 3);
  // One that says hello and nothing more, as if it were stopped.
  SocketLine silent(connect_tcp("127.0.0.1", hub->port(), soon()).value(), "the agent");
  REQUIRE(greet_agent(silent, "secret", soon()).has_value());
  SiteMember self;
  self.rank = 2;
  REQUIRE(silent.send(json_text(rank_hello(self, 3)), soon()));
  REQUIRE(hub->wait_for(3, soon(), {}).size() == 3);

  std::thread rank([&] {
    CHECK(working->next().has_value());
    std::this_thread::sleep_for(100ms);
    dying.reset();
    working->answer(json{{"number", 7}});
  });
  const auto answers = hub->ask(to_all(3, {{"type", "work"}}), {});
  rank.join();
  CHECK(member_integer(*answers[0], "number") == 7);
  for (const int number : {1, 2}) {
    const auto& answer = answers[static_cast<std::size_t>(number)];
    REQUIRE(!answer.has_value());
    CHECK(answer.error().code() == Errc::unavailable);
    CHECK(answer.error().message().starts_with("rank " + std::to_string(number)));
  }
  CHECK(answers[2].error().message().find("it was silent for") != std::string::npos);
  CHECK(lost == 2);
  CHECK(hub->members().size() == 1);
  CHECK(hub->ask({{1, json{{"type", "work"}}}}, {})[0].error().message() == "rank 1 is not there");
}

TEST_CASE("ranks that may wait for one that fails are told to end their work at once") {
  enum class Way { dies, fails };
  for (const Way way : {Way::dies, Way::fails}) {
    for (const bool is_common : {true, false}) {
      CAPTURE(static_cast<int>(way));
      CAPTURE(is_common);
      SiteHub::Options options;
      options.host = "127.0.0.1";
      options.secret = "secret";
      options.size = 3;
      options.silence = patience;
      const auto hub = SiteHub::open(std::move(options)).value();
      const auto zero = enter(*hub, 0, 3);
      auto failing = enter(*hub, 1, 3);
      const auto two = enter(*hub, 2, 3);
      REQUIRE(hub->wait_for(3, soon(), {}).size() == 3);
      std::thread first([&] { work_until_told(*zero, is_common ? patience : 100ms); });
      std::thread second([&] { work_until_told(*two, is_common ? patience : 100ms); });
      std::thread third([&] {
        REQUIRE(failing->next().has_value());
        if (way == Way::fails)
          failing->answer(Error(Errc::invalid_input, "the loss is nan"));
        else
          failing.reset();
      });
      const auto answers = hub->ask(to_all(3, {{"type", "work"}}, is_common), {});
      for (std::thread* rank : {&first, &second, &third}) rank->join();
      for (const std::size_t rank : {0U, 2U}) {
        REQUIRE(answers[rank].has_value());
        const std::string told = member_text(*answers[rank], "told");
        CHECK(told.empty() == !is_common);
        CHECK(told.starts_with(is_common ? "rank 1 (" : ""));
        const std::string said = way == Way::fails ? "the loss is nan" : "is lost: ";
        if (is_common) CHECK(told.find(said) != std::string::npos);
      }
      CHECK(!answers[1].has_value());

      // Work that begins afterwards is not ended.
      std::thread again([&] { work_until_told(*zero, 100ms); });
      const auto later = hub->ask({{0, json{{"type", "work"}}, true}}, {});
      again.join();
      CHECK(member_text(*later[0], "told").empty());
    }
  }
}

TEST_CASE("common work for a rank that is gone already is ended at once") {
  const auto hub = hub_of(2);
  const auto zero = enter(*hub, 0, 2);
  REQUIRE(hub->wait_for(1, soon(), {}).size() == 1);
  std::thread rank([&] { work_until_told(*zero, patience); });
  const auto answers = hub->ask(to_all(2, {{"type", "work"}}, true), {});
  rank.join();
  CHECK(member_text(answers[0].value(), "told") == "rank 1 is not there");
  CHECK(answers[1].error().message() == "rank 1 is not there");
}

TEST_CASE("a rank that does not do the common work ends it for nobody") {
  const auto hub = hub_of(3);
  const auto zero = enter(*hub, 0, 3);
  const auto one = enter(*hub, 1, 3);
  auto spare = enter(*hub, 2, 3);
  REQUIRE(hub->wait_for(3, soon(), {}).size() == 3);
  std::thread first([&] { work_until_told(*zero, 300ms); });
  std::thread second([&] { work_until_told(*one, 300ms); });
  std::thread third([&] {
    std::this_thread::sleep_for(50ms);
    spare.reset();
  });
  const auto answers = hub->ask(to_all(2, {{"type", "work"}}, true), {});
  for (std::thread* rank : {&first, &second, &third}) rank->join();
  for (const auto& answer : answers) CHECK(member_text(answer.value(), "told").empty());
}

TEST_CASE("a rank that waits for a key of the store hears that another one is lost") {
  const auto hub = hub_of(2);
  const auto waiting = enter(*hub, 0, 2);
  auto dying = enter(*hub, 1, 2);
  REQUIRE(hub->wait_for(2, soon(), {}).size() == 2);
  std::thread rank([&] {
    REQUIRE(waiting->next().has_value());
    const auto value = waiting->get("never set", soon());
    REQUIRE(value.has_error());
    CHECK(value.error().code() == Errc::unavailable);
    CHECK(value.error().message().starts_with("rank 1 ("));
    waiting->answer(value.error());
  });
  std::thread end([&] {
    REQUIRE(dying->next().has_value());
    dying.reset();
  });
  const auto answers = hub->ask(to_all(2, {{"type", "work"}}, true), {});
  rank.join();
  end.join();
  CHECK(answers[0].error().code() == Errc::unavailable);
}

TEST_CASE("a rank that hangs but shows life is dropped after another has failed") {
  const auto hub = hub_of(2);
  const auto failing = enter(*hub, 0, 2);
  const auto hanging = enter(*hub, 1, 2);
  std::thread rank([&] {
    CHECK(failing->next().has_value());
    failing->answer(Error(Errc::unavailable, "the sum failed"));
  });
  const auto answers = hub->ask(to_all(2, {{"type", "work"}}), {});
  rank.join();
  CHECK(answers[0].error().message().ends_with("the sum failed"));
  CHECK(answers[1].error().code() == Errc::unavailable);
  CHECK(hub->members().size() == 1);
}

TEST_CASE("a rank whose work hangs is dropped, though it shows life and no other rank fails") {
  // A beat comes each second.
  const auto hub = hub_of(2, 5s);
  const auto hanging = enter(*hub, 0, 2);
  const auto busy = enter(*hub, 1, 2);
  std::thread rank([&] {
    CHECK(busy->next().has_value());
    // It works for longer than the other one may hang.
    while (hub->members().size() == 2) {
      busy->advance();
      std::this_thread::sleep_for(10ms);
    }
    busy->answer(json{{"number", 7}});
    CHECK(busy->next().has_value());
    busy->answer(json{{"number", 8}});
  });
  const auto answers = hub->ask({{1, {{"type", "train"}}}, {0, {{"type", "evaluate"}}}}, {});
  CHECK(member_integer(answers[0].value(), "number") == 7);
  REQUIRE(!answers[1].has_value());
  CHECK(answers[1].error().code() == Errc::unavailable);
  CHECK(answers[1].error().message().starts_with("rank 0 ("));
  CHECK(answers[1].error().message().ends_with("its work has got no further for 5 s"));
  CHECK(hub->members().size() == 1);
  CHECK(hub->ask({{1, {{"type", "train"}}}}, {})[0].has_value());
  rank.join();
}

TEST_CASE("what a rank computes, or waits for another one, counts as progress where it says so") {
  const auto hub = hub_of(3, 5s);
  const auto hanging = enter(*hub, 0, 3);
  const auto loading = enter(*hub, 1, 3);
  const auto waiting = enter(*hub, 2, 3);
  std::thread rank([&] {
    CHECK(loading->next().has_value());
    CHECK(waiting->next().has_value());
    loading->count_computing(true);
    waiting->count_waiting(true);
    volatile double sum = 0;
    while (hub->members().size() == 3) sum = sum + 1;
    loading->answer(json::object());
    waiting->answer(json::object());
  });
  // All are of this process, whose time it is; one that does not count it is dropped.
  const auto answers = hub->ask(to_all(3, {{"type", "load"}}), {});
  CHECK(!answers[0].has_value());
  CHECK(answers[1].has_value());
  CHECK(answers[2].has_value());
  rank.join();
}

TEST_CASE("a rank hears that its agent is gone") {
  auto hub = hub_of(1);
  auto options = rank_of(*hub, 0, 1);
  std::atomic<bool> is_told = false;
  options.on_lost = [&is_told] { is_told = true; };
  const auto link = RankLink::connect(options).value();
  REQUIRE(hub->wait_for(1, soon(), {}).size() == 1);
  hub.reset();
  CHECK(link->next().error().code() == Errc::unavailable);
  CHECK(link->stop_token().stop_requested());
  CHECK(link->get("key", soon()).error().code() == Errc::unavailable);
  while (!is_told) std::this_thread::sleep_for(1ms);
}

}  // namespace fl::test
