// SPDX-License-Identifier: Apache-2.0
// Which connections that have not authenticated may go on: few at a time, the oldest silent one
// ends first, and nobody waits for a handshake that does not go on.
#include "server/net/strangers.hpp"
#include "server/net/places.hpp"

#include "shared/base/limits.hpp"

#include <doctest/doctest.h>

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
  for (const Strangers::Address address : {2, 3, 3, 3}) door.enter(address);
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
  CHECK(door.next().begin == Ids{a, b, d});
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
