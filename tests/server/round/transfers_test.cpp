// SPDX-License-Identifier: Apache-2.0
// The transfers under way, as those who watch see them.
#include "server/round/transfers.hpp"
#include "tests/server/round/fake_peer.hpp"

#include <doctest/doctest.h>

namespace fl::test {

using Way = Transfers::Way;

TEST_CASE("a transfer's progress comes from its session's counters, and goes on where it broke") {
  Transfers transfers;
  const auto peer = trainer("a");
  peer->up = 500;  // Bytes that the session has transferred before.
  transfers.begin(peer, Way::up, 3, {.bytes = 1000, .offset = 200});
  const auto* const transfer = transfers.find("a", Way::up);
  REQUIRE(transfer != nullptr);
  CHECK(transfer->number == 3);
  CHECK(transfer->done(Way::up) == 200);
  peer->up += 300;
  peer->down += 77;  // Bytes of other messages.
  CHECK(transfer->done(Way::up) == 500);
  // Messages have headers too: what came is never more than the whole.
  peer->up += 900;
  CHECK(transfer->done(Way::up) == 1000);
}

TEST_CASE("a client has one transfer each way, and only its own session ends it") {
  Transfers transfers;
  const auto before = trainer("a");
  const auto after = trainer("a");
  transfers.begin(before, Way::up, 1, {.bytes = 10});
  transfers.begin(before, Way::down, 1, {.bytes = 10});
  CHECK(transfers.all().size() == 2);
  // It comes back, and its old session's end is heard afterwards.
  transfers.begin(after, Way::up, 1, {.bytes = 10, .offset = 5});
  transfers.end(*before, Way::up);
  REQUIRE(transfers.find("a", Way::up) != nullptr);
  CHECK(transfers.find("a", Way::up)->size.offset == 5);
  transfers.end(*after, Way::up);
  transfers.end(*after, Way::up);
  CHECK(transfers.find("a", Way::up) == nullptr);
  CHECK(transfers.find("a", Way::down) != nullptr);
  CHECK(transfers.find("b", Way::down) == nullptr);
}

}  // namespace fl::test
