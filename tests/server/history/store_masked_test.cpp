// SPDX-License-Identifier: Apache-2.0
// The log of a masked round: it outlives the process, has each message once, and goes with its
// round.
#include "tests/server/history/store_world.hpp"

#include <fmt/format.h>

namespace fl::test {
namespace {

MaskedMessage said(std::uint32_t attempt, std::string client, std::string kind,
                   std::string message) {
  const TaskId task = client.empty() ? TaskId::none : TaskId{7};
  return {attempt, std::move(client), task, std::move(kind), std::move(message)};
}

std::vector<std::string> texts(StoreWorld& world, Round round) {
  std::vector<std::string> all;
  for (const auto& row : world.store->masked_messages().of_round(world.run, round).value())
    all.push_back(fmt::format("{} {} {} {}", row.attempt, row.client, row.kind, row.message));
  return all;
}

TEST_CASE("messages of a masked round come back in their order, each once, until it is recorded") {
  StoreWorld world;
  world.start_round({"a", "b"});
  const std::string bytes("\0\xff binary", 9);
  auto add = [&](std::vector<MaskedMessage> rows) {
    return world.store->masked_messages().add(world.run, 1, rows);
  };
  REQUIRE(add({said(1, "b", "SecureKeys", bytes)}));
  REQUIRE(add({said(1, "a", "SecureKeys", "two"), said(1, "", "SecureCohort", "three")}));
  REQUIRE(add({said(2, "b", "SecureKeys", "four")}));
  // Of messages that are refused none is kept.
  const auto again = add({said(2, "a", "SecureKeys", "six"), said(1, "a", "SecureKeys", "other")});
  REQUIRE_FALSE(again);
  CHECK(again.error().code() == Errc::conflict);
  auto newer = said(1, "a", "SecureKeys", "five");
  newer.task = TaskId{8};
  REQUIRE(add({newer}));
  world.reopen();
  const std::vector<std::string> expected{"1 b SecureKeys " + bytes, "1 a SecureKeys two",
                                          "1  SecureCohort three", "2 b SecureKeys four",
                                          "1 a SecureKeys five"};
  CHECK(texts(world, 1) == expected);
  CHECK(texts(world, 2).empty());

  REQUIRE(world.store->rounds().commit(some_commit(world.run, 1)));
  CHECK(texts(world, 1).empty());
  world.open(2, {"a"});
  REQUIRE(world.store->masked_messages().add(world.run, 2, {said(1, "a", "SecureKeys", "six")}));
  CHECK(texts(world, 2) == std::vector<std::string>{"1 a SecureKeys six"});
}

}  // namespace
}  // namespace fl::test
