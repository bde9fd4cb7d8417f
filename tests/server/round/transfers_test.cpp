// SPDX-License-Identifier: Apache-2.0
// The transfers under way, as those who watch see them.
#include "server/round/transfers.hpp"
#include "tests/server/round/fake_peer.hpp"

#include <doctest/doctest.h>

namespace fl::test {

using namespace fl::server;

using Way = TransferWay;

TEST_CASE("a transfer's progress comes from its session's counters, and goes on where it broke") {
  const auto budget = std::make_shared<BulkBudget>();
  Transfers transfers(budget);
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
  const auto budget = std::make_shared<BulkBudget>();
  Transfers transfers(budget);
  const auto before = trainer("a");
  const auto after = trainer("a");
  transfers.begin(before, Way::up, 1, {.bytes = 10});
  transfers.begin(before, Way::down, 1, {.bytes = 10});
  CHECK(transfers.all().size() == 2);
  // It comes back, and its old session's end is heard afterwards.
  transfers.begin(after, Way::up, 1, {.bytes = 10, .offset = 5});
  transfers.end(*before, Way::up, 0);
  REQUIRE(transfers.find("a", Way::up) != nullptr);
  CHECK(transfers.find("a", Way::up)->size.offset == 5);
  transfers.note_arrived(*after);
  CHECK(transfers.find("a", Way::up) == nullptr);
  transfers.end(*after, Way::up, 0);
  CHECK(transfers.find("a", Way::up) == nullptr);
  CHECK(transfers.find("a", Way::down) != nullptr);
  CHECK(transfers.find("b", Way::down) == nullptr);
}

TEST_CASE("the transfers of two runs share one budget, and give back what they took") {
  const auto budget = std::make_shared<BulkBudget>();
  Transfers first(budget);
  Transfers second(budget);
  const auto peer = trainer("a");
  first.begin(peer, Way::up, 1, {.bytes = 10, .chunk_bytes_max = 4096});
  second.begin(peer, Way::down, 1, {.bytes = 10, .chunk_bytes_max = 8192});
  CHECK(first.budget().transfers() == 2);
  CHECK(second.budget().bytes() == limits::chunks_of_transfer * (4096 + 8192));
  first.note_arrived(*peer);  // The session has its buffers until the verdict.
  CHECK(budget->transfers() == 2);
  first.end(*peer, Way::up, 4096);
  second.end(*peer, Way::down, 8192);
  CHECK(budget->transfers() == 0);
  CHECK(budget->bytes() == 0);
}

}  // namespace fl::test
