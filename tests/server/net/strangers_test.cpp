// SPDX-License-Identifier: Apache-2.0
// Which connections that have not authenticated may go on: few at a time, the oldest silent one
// ends first, and nobody waits for a handshake that does not go on.
#include "shared/net/strangers.hpp"
#include "server/net/places.hpp"
#include "shared/base/async/asio.hpp"
#include "shared/base/limits.hpp"
#include "shared/net/accept_pace.hpp"

#include <boost/asio/ip/tcp.hpp>

#include <doctest/doctest.h>

#include <sys/socket.h>

#include <chrono>
#include <vector>

namespace fl::test {
namespace {

using namespace std::chrono_literals;
using Ids = std::vector<Strangers::Id>;

constexpr Strangers::Limits few{.all = 6,
                                .of_address = 4,
                                .handshakes = 3,
                                .handshakes_of_address = 2,
                                .turn = 1s,
                                .time = 15s};

struct Door {
  Strangers strangers{few};
  TimePoint now{};

  Strangers::Id enter(Strangers::Address address) { return strangers.enter(address, now); }
  Strangers::Id shake(Strangers::Address address) {
    const auto id = enter(address);
    strangers.speak(id);
    return id;
  }
  Strangers::Moves next() { return strangers.next(now); }
};

TEST_CASE("a silent connection gets no handshake; its first byte brings it one") {
  Door door;
  const auto id = door.enter(1);
  CHECK(door.next().begin.empty());
  door.strangers.speak(id);
  CHECK(door.next().begin == Ids{id});
  CHECK(door.next().begin.empty());
}

TEST_CASE("one more than all may be: the oldest silent one ends, not one that shakes hands") {
  Door door;
  const auto shaking = door.shake(1);
  const auto silent = door.enter(2);
  for (const Strangers::Address address : {2, 2, 3, 3}) door.enter(address);
  CHECK(door.next().close.empty());
  door.enter(4);
  CHECK(door.next().close == Ids{silent});
  CHECK(door.strangers.count() == few.all);
  door.strangers.speak(silent);  // Its first byte may come too late.
  door.strangers.leave(silent);
  door.strangers.leave(shaking);
  CHECK(door.strangers.count() == few.all - 1);
}

TEST_CASE("one more than an address may have: the oldest of that address ends") {
  Door door;
  const auto other = door.enter(2);
  const auto first = door.enter(1);
  for (int i = 0; i < 3; ++i) door.enter(1);
  CHECK(door.next().close.empty());
  door.enter(1);
  CHECK(door.next().close == Ids{first});
  door.strangers.leave(other);
}

TEST_CASE("handshakes wait for a place, in order; another address does not wait for this one's") {
  Door door;
  const auto a = door.shake(1);
  const auto b = door.shake(1);
  const auto c = door.shake(1);
  const auto d = door.shake(2);
  CHECK(door.next().begin == Ids{a, d, b});
  door.strangers.leave(d);
  CHECK(door.next().begin.empty());  // c's address has its two.
  door.strangers.leave(a);
  CHECK(door.next().begin == Ids{c});
}

TEST_CASE("a handshake that has had its turn ends when another waits for its place") {
  Door door;
  const auto slow = door.shake(1);
  const auto other = door.shake(1);
  CHECK(door.next().begin == Ids{slow, other});
  door.now += 2s;
  CHECK(door.next().close.empty());  // Nobody waits.
  const auto late = door.shake(1);
  const auto moves = door.next();
  CHECK(moves.close == Ids{slow});
  CHECK(moves.begin == Ids{late});
}

TEST_CASE("a handshake of another address is not ended for one that it is not in the way of") {
  Door door;
  const auto slow = door.shake(2);
  CHECK(door.next().begin == Ids{slow});
  door.now += 2s;
  door.shake(1);
  door.shake(1);
  CHECK(door.next().begin.size() == 2);
  door.strangers.leave(slow);
  door.shake(2);
  door.next();
  door.now += 100ms;
  door.shake(1);  // Waits for one of address 1, which have not had their turn yet.
  CHECK(door.next().close.empty());
}

TEST_CASE("every connection ends when its time is over") {
  Door door;
  const auto silent = door.enter(1);
  const auto shaking = door.shake(1);
  door.next();
  door.now += few.time - 1ms;
  CHECK(door.next().close.empty());
  door.now += 1ms;
  CHECK(door.next().close == Ids{silent, shaking});
  CHECK(door.strangers.count() == 0);
}

TEST_CASE("those that speak can't keep out one that has had no time to speak") {
  Door door;
  Ids flood;
  for (const Strangers::Address address : {1, 1, 1, 1, 2, 2}) flood.push_back(door.shake(address));
  CHECK(door.next().begin == Ids{flood[0], flood[4], flood[1]});
  const auto late = door.enter(3);
  CHECK(door.next().close == Ids{flood[2]});  // Address 1 has the most, and this one waits.
  door.strangers.speak(late);
  // Nor do those of its own address, when that has too many.
  const auto crowded = door.enter(1);
  CHECK(door.next().close == Ids{flood[3]});
  CHECK(door.next().close.empty());
  static_cast<void>(crowded);
}

TEST_CASE("a free place for a handshake is for the address with the fewest of them") {
  Door door;
  for (int i = 0; i < 4; ++i) door.shake(1);
  const auto first = door.shake(2);
  const auto begun = door.next().begin;
  REQUIRE(begun.size() == few.handshakes);
  const auto late = door.shake(3);
  door.strangers.leave(begun[0]);
  CHECK(door.next().begin == Ids{late});
  static_cast<void>(first);
}

TEST_CASE("a port that has no handshakes ends the oldest connection, of an address with too many") {
  Door door;
  const auto other = door.enter(2);
  Ids mine;
  for (std::size_t i = 0; i < few.of_address; ++i) mine.push_back(door.enter(1));
  CHECK(door.next().close.empty());
  const auto newest = door.enter(1);
  CHECK(door.next().close == Ids{mine[0]});
  door.strangers.leave(newest);  // It has proven who it is.
  const auto next = door.enter(1);
  CHECK(door.next().close.empty());
  door.strangers.leave(next);
  CHECK(door.strangers.count() == few.of_address);
  door.strangers.leave(other);
}

TEST_CASE("one machine is an IPv4 address, or an IPv6 network of 64 bits") {
  const auto of = [](const char* text) {
    const net::ip::tcp::endpoint end(net::ip::make_address(text), 80);
    return stranger_address(*end.data());
  };
  CHECK(of("192.0.2.7") == 0xc0000207);
  CHECK(of("::ffff:192.0.2.7") == of("192.0.2.7"));
  CHECK(of("2001:db8:0:1::1") == 0x20010db800000001);
  CHECK(of("2001:db8:0:1:ffff::2") == of("2001:db8:0:1::1"));
  CHECK(of("2001:db8:0:2::1") != of("2001:db8:0:1::1"));
  sockaddr local{};
  local.sa_family = AF_UNIX;
  CHECK(stranger_address(local) == 0);
}

TEST_CASE("a port accepts so many connections in a turn, and a quiet one saves no turns up") {
  const TimePoint begin{};
  AcceptPace pace(3, begin);
  CHECK(pace.next(begin) == begin);
  CHECK(pace.next(begin) == begin);
  CHECK(pace.next(begin) == begin + limits::accept_turn);
  const TimePoint later = begin + 10s;
  CHECK(pace.next(later) == later);
  CHECK(pace.next(later) == later);
  CHECK(pace.next(later) == later);  // Its turn is long over.
  for (int i = 0; i < 2; ++i) CHECK(pace.next(later) == later);
  CHECK(pace.next(later) == later + limits::accept_turn);
}

TEST_CASE("the places follow from the files that may be open, with a reserve") {
  CHECK(places_for(1u << 20).sessions == limits::sessions_max);
  CHECK(places_for(1u << 20).strangers == limits::strangers_max);
  const Places few_files = places_for(limits::files_reserved + 100);
  CHECK(few_files.sessions == 50);
  CHECK(few_files.strangers == 25);
  CHECK(places_for(10).sessions == 1);
  for (const std::uint64_t files : {256, 1024, 4096, 20000}) {
    const Places places = places_for(files);
    CHECK(places.sessions + places.strangers + limits::files_reserved < files);
  }
}

}  // namespace
}  // namespace fl::test
