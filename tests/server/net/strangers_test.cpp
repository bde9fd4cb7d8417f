// SPDX-License-Identifier: Apache-2.0
// Which connections that have not authenticated may go on: few at a time, addresses in turn, the
// oldest silent one ends first, and nobody waits for a handshake that does not go on.
#include "shared/net/strangers.hpp"
#include "server/net/places.hpp"
#include "shared/base/async/asio.hpp"
#include "shared/base/limits.hpp"
#include "shared/net/accept_pace.hpp"
#include "shared/net/address_book.hpp"

#include <boost/asio/ip/tcp.hpp>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace fl::test {

using namespace fl::server;
namespace {

using namespace std::chrono_literals;
using Ids = std::vector<Strangers::Id>;

constexpr Strangers::Limits few{.all = 6,
                                .of_address = 4,
                                .handshakes = 3,
                                .handshakes_of_address = 2,
                                .handshakes_reserved = 0,
                                .turn = 1s,
                                .turn_max = 4s,
                                .time = 15s};

struct Door {
  Strangers strangers{few};
  TimePoint now = TimePoint() + 1h;

  Door() = default;
  explicit Door(const Strangers::Limits& limits) : strangers(limits) {}

  Strangers::Id enter(Address address) { return strangers.enter(address, now); }
  Strangers::Id shake(Address address, Duration line = 50ms) {
    const auto id = enter(address);
    strangers.greet(id, line);
    return id;
  }
  /// A member comes from this address, and is in.
  void let_in(Address address) {
    const auto id = shake(address);
    REQUIRE(next().begin == Ids{id});
    strangers.admit(id, fmt::format("member-{}", address), now);
  }
  Strangers::Moves next() { return strangers.next(now); }
};

TEST_CASE("a connection gets no handshake before its whole ClientHello is there") {
  Door door;
  const auto id = door.enter(1);
  CHECK(door.next().begin.empty());
  door.strangers.greet(id, 50ms);
  CHECK(door.next().begin == Ids{id});
  CHECK(door.next().begin.empty());
}

TEST_CASE("one more than all may be: the oldest silent one ends, not one that shakes hands") {
  Door door;
  const auto shaking = door.shake(1);
  const auto silent = door.enter(2);
  for (const Address address : {2, 2, 3, 3}) door.enter(address);
  CHECK(door.next().close.empty());
  door.enter(4);
  CHECK(door.next().close == Ids{silent});
  CHECK(door.strangers.count() == few.all);
  door.strangers.greet(silent, 50ms);  // The ClientHello may come too late.
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

TEST_CASE("too many of all: one of the address with the most ends, not of another") {
  Door door;
  door.enter(1);
  for (int i = 0; i < 2; ++i) door.enter(2);
  const auto most = door.enter(3);
  for (int i = 0; i < 2; ++i) door.enter(3);
  door.enter(4);
  CHECK(door.next().close == Ids{most});
}

TEST_CASE("as many addresses as there are places, with one connection each, keep nobody out") {
  for (const bool have_greeted : {false, true}) {
    CAPTURE(have_greeted);
    Door door;
    for (Address address = 1; address <= few.all; ++address)
      have_greeted ? door.shake(address) : door.enter(address);
    door.next();
    for (Address address = 10; address < 50; ++address) {
      const auto late = door.enter(address);
      const auto closed = door.next().close;
      REQUIRE(closed.size() == 1);
      CHECK(closed[0] != late);
    }
  }
}

TEST_CASE("too many of all, one of each address: where a member was lately none ends") {
  Door door;
  door.let_in(9);
  const auto member = door.enter(9);
  for (Address address = 10; address < 50; ++address) {
    door.enter(address);
    const auto closed = door.next().close;
    CHECK(std::ranges::find(closed, member) == closed.end());
  }
}

TEST_CASE("handshakes wait for a place; another address does not wait for this one's") {
  Door door;
  const auto a = door.shake(1);
  const auto b = door.shake(1);
  const auto c = door.shake(1);
  const auto d = door.shake(2);
  CHECK(door.next().begin == Ids{c, d, a});
  door.strangers.leave(d);
  CHECK(door.next().begin.empty());  // b's address has its two.
  door.strangers.leave(c);
  CHECK(door.next().begin == Ids{b});
}

TEST_CASE("who comes now does not wait behind connections that others have left waiting") {
  Strangers::Limits limits = few;
  limits.all = limits.of_address = 1000;
  Door door(limits);
  for (int i = 0; i < 500; ++i) door.shake(1);
  CHECK(door.next().begin.size() == 2);
  door.shake(5);
  CHECK(door.next().begin.size() == 1);  // All three places are taken.
  const auto late = door.shake(6);
  const auto same = door.shake(1);
  CHECK(door.next().begin.empty());
  door.now += 1s;
  const auto moves = door.next();
  REQUIRE(moves.begin.size() >= 2);
  CHECK(moves.begin[0] == late);
  CHECK(moves.begin[1] == same);
}

TEST_CASE("who waits is not kept out by others that come again and again, of its address or not") {
  for (const Address address : {1, 2}) {
    Strangers::Limits limits = few;
    limits.addresses.of_address = limits.addresses.of_unknown = {.at_once = 1, .per_s = 10};
    Door door(limits);
    for (int i = 0; i < 2; ++i) door.shake(1);
    door.next();
    const auto late = door.shake(address);
    door.shake(1);
    bool is_in = false;
    for (int look = 0; look < 5 && !is_in; ++look) {
      door.now += 100ms;
      for (const auto id : door.next().begin) {
        is_in = is_in || id == late;
        door.strangers.leave(id);
        door.shake(1);  // It comes back at once.
      }
    }
    CHECK(is_in);
  }
}

TEST_CASE("a handshake that has had its turn ends when another waits for its place") {
  Door door;
  const auto slow = door.shake(1);
  const auto other = door.shake(1);
  CHECK(door.next().begin == Ids{other, slow});
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

TEST_CASE("a handshake over a line with long round trips has a longer turn, within a limit") {
  Door door;
  const auto far = door.shake(1, 600ms);
  const auto farther = door.shake(1, 1h);
  CHECK(door.next().begin.size() == 2);
  door.shake(1);
  door.now += 2s;
  CHECK(door.next().close.empty());
  door.now += 400ms;
  CHECK(door.next().close == Ids{far});
  door.shake(1);
  door.now += 1600ms;
  CHECK(door.next().close.front() == farther);
}

TEST_CASE("some places are only for addresses where a member was lately") {
  Strangers::Limits limits = few;
  limits.handshakes_reserved = 1;
  limits.addresses.member_time = 1h;
  Door door(limits);
  door.let_in(9);
  for (const Address address : {1, 2, 3}) door.shake(address);
  CHECK(door.next().begin.size() == 2);
  const auto member = door.shake(9);
  CHECK(door.next().begin == Ids{member});
  door.now += 1h;  // All of them end, and nobody was here lately.
  for (const Address address : {1, 2, 9}) door.shake(address);
  CHECK(door.next().begin.size() == 2);
}

TEST_CASE("one that waits for a place of strangers ends no member's handshake") {
  for (const bool are_all_taken : {false, true}) {
    CAPTURE(are_all_taken);
    Strangers::Limits limits = few;
    limits.handshakes_reserved = 2;
    Door door(limits);
    for (const Address address : {7, 8, 9}) door.let_in(address);
    door.shake(7);
    if (are_all_taken) door.shake(8);
    const auto stranger = door.shake(1);
    CHECK(door.next().begin.size() == (are_all_taken ? 3 : 2));
    door.now += 2s;  // All have had their turn.
    const auto late = door.shake(2);
    const auto moves = door.next();
    CHECK(moves.close == Ids{stranger});
    CHECK(moves.begin == Ids{late});
    const auto member = door.shake(9);
    const auto for_member = door.next();
    CHECK(for_member.close.size() == (are_all_taken ? 1 : 0));
    CHECK(for_member.begin == Ids{member});
  }
}

TEST_CASE("new addresses, one after the other, do not keep out one that comes among them") {
  Strangers::Limits limits = few;
  limits.all = limits.of_address = 100;
  limits.handshakes = 1;
  Door door(limits);
  for (Address address = 1; address <= 50; ++address) door.shake(address);
  const auto late = door.shake(99);
  bool is_in = false;
  for (int i = 0; i < 4 && !is_in; ++i) {
    for (const auto id : door.next().begin) {
      is_in = is_in || id == late;
      door.strangers.leave(id);
    }
  }
  CHECK(is_in);
}

TEST_CASE("one member makes few addresses known, and its newest ones") {
  AddressBook book({});
  const TimePoint now = TimePoint() + 1h;
  book.bear_fruit(1, "alice", now);
  constexpr Address first = 100;
  constexpr Address last = first + 2 * limits::addresses_of_member_max;
  book.bear_fruit(first, "greedy", now);
  book.bear_fruit(first, "bob", now);
  for (Address address = first + 1; address <= last; ++address)
    book.bear_fruit(address, "greedy", now);
  std::size_t known = 0;
  for (Address address = first + 1; address <= last; ++address)
    known += book.is_known(address, now) ? 1 : 0;
  CHECK(known == limits::addresses_of_member_max);
  CHECK(book.is_known(last, now));
  CHECK(book.is_known(first, now));  // Bob was there after it.
  CHECK(book.is_known(1, now));
}

TEST_CASE("an address whose handshakes lead nowhere waits, and those of members do not") {
  Strangers::Limits limits = few;
  limits.addresses.of_address = {.at_once = 5, .per_s = 2};
  limits.addresses.of_unknown = {.at_once = 8, .per_s = 1};
  Door door(limits);
  door.let_in(9);
  const auto fruitless = [&](Address address) {
    const auto id = door.shake(address);
    const bool begins = door.next().begin == Ids{id};
    door.strangers.leave(id);
    return begins;
  };
  for (int i = 0; i < 5; ++i) CHECK(fruitless(1));
  CHECK(!fruitless(1));
  for (int i = 0; i < 20; ++i) door.let_in(2);  // It shows a member each time.
  for (int i = 0; i < 3; ++i) CHECK(fruitless(3));
  CHECK(!fruitless(4));  // All unknown ones together have had their eight.
  CHECK(fruitless(9));
  const auto waits = door.shake(1);
  door.now += 400ms;
  CHECK(door.next().begin.empty());
  door.now += 600ms;
  CHECK(door.next().begin == Ids{waits});
}

TEST_CASE("what is remembered of addresses has a limit, and those of members stay longest") {
  AddressBook::Limits limits;
  limits.addresses = 100;
  limits.of_address = {.at_once = 1, .per_s = 0};
  AddressBook book(limits);
  TimePoint now = TimePoint() + 1h;
  book.bear_fruit(1, "alice", now);
  for (Address address = 2; address < 1000; ++address) {
    now += 1ms;
    book.try_once(address, now);
    REQUIRE(book.size() <= limits.addresses);
    REQUIRE(book.is_known(1, now));
  }
  CHECK(!book.may_try(999, now));  // The newest is remembered too.
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
  for (const Address address : {1, 1, 1, 1, 2, 2}) flood.push_back(door.shake(address));
  CHECK(door.next().begin == Ids{flood[3], flood[5], flood[0]});
  const auto late = door.enter(3);
  CHECK(door.next().close == Ids{flood[1]});  // Address 1 has the most, and this one waits.
  door.strangers.greet(late, 50ms);
  // Nor do those of its own address, when that has too many.
  const auto crowded = door.enter(1);
  CHECK(door.next().close == Ids{flood[2]});
  CHECK(door.next().close.empty());
  static_cast<void>(crowded);
}

TEST_CASE("those that speak don't keep out another one of their address, when it has too many") {
  Door door;
  for (std::size_t i = 0; i < few.of_address; ++i) door.shake(1);
  door.next();
  const auto late = door.enter(1);
  const auto closed = door.next().close;
  REQUIRE(closed.size() == 1);
  CHECK(closed[0] != late);
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
  CHECK(pace.next(later) == later);  // The handshake's turn is long over.
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
