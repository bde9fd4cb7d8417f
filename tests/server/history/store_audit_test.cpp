// SPDX-License-Identifier: Apache-2.0
// The audit: who came in and who was kept out, and that no row is ever pushed out of it.
#include "server/history/rows.hpp"
#include "tests/server/history/store_world.hpp"

#include "shared/base/async/clock.hpp"

#include <sqlite3.h>

#include <boost/asio/io_context.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::server;
namespace {

std::vector<std::string> kinds(Store& store, const std::string& client = "") {
  std::vector<std::string> found;
  const auto rows = store.audit().all(client).value();
  for (const auto& row : rows) found.emplace_back(to_text(row.kind));
  return found;
}

using Kinds = std::vector<std::string>;

Awaitable<void> wait(Duration duration) { co_await sleep_for(duration); }

void pass(SimulatedTime& time, Duration duration) {
  net::io_context io{1};
  net::co_spawn(io, wait(duration), rethrow);
  while (time.step(io)) continue;
}

}  // namespace

TEST_CASE("what changes who may come in is in the audit, with its certificates") {
  StoreWorld world;
  Store& store = *world.store;
  REQUIRE(store.members().add_token(some_token("t1", "a")));
  CHECK(store.audit().all().value().empty());
  REQUIRE(store.members().use_token("t1", some_client("a", "01"), "k1"));
  REQUIRE(store.members().use_token("t1", some_client("a", "02"), "k1"));  // The answer was lost.
  REQUIRE(store.members().add_certificate("a", "03", "02"));
  REQUIRE(store.members().add_token(some_token("t2", "a")));
  REQUIRE(store.members().use_token("t2", some_client("a", "04"), "k2"));
  REQUIRE(store.members().revoke("a", "root"));
  REQUIRE(store.members().revoke("a", "root"));  // Changes nothing.
  REQUIRE(store.members().add_token(some_token("t3", "b")));
  REQUIRE(store.members().revoke("b", "root"));
  CHECK(kinds(store, "a") == Kinds{"enrolment", "enrolment", "renewal", "takeover", "revocation"});
  CHECK(kinds(store, "b") == Kinds{"revocation"});
  const auto rows = store.audit().all("a").value();
  CHECK(rows[0].text == "certificate 01");
  CHECK(rows[2].text == "certificate 03 after 02");
  CHECK(rows[3].text.find("new key") != std::string::npos);
  CHECK(rows[3].at > 0);
  // Clients join and renew by themselves; somebody else revokes them.
  for (std::size_t i = 0; i < 4; ++i) CHECK(rows[i].who == "a");
  CHECK(rows[4].who == "root");
}

TEST_CASE("what was not done is not in the audit") {
  StoreWorld world;
  REQUIRE(world.store->members().add_token(some_token("t1", "a")));
  REQUIRE(world.store->members().use_token("t1", some_client("a", "01"), "k1"));
  CHECK(!world.store->members().use_token("t1", some_client("a", "02"), "k2"));
  CHECK(!world.store->members().add_certificate("a", "03", "99"));
  CHECK(!world.store->members().revoke("nobody", "root"));
  CHECK(kinds(*world.store) == Kinds{"enrolment"});
}

TEST_CASE("a flood of strangers is a number, and does not hide what a member did") {
  SimulatedTime time;
  StoreWorld world;
  Store& store = *world.store;
  for (int i = 0; i < 100; ++i)
    REQUIRE(store.audit().add(AuditKind::refusal, "", "a forged token"));
  REQUIRE(store.audit().add(AuditKind::refusal, "a", "'a' was revoked"));
  REQUIRE(store.audit().add_counts());
  CHECK(kinds(store).size() == limits::lines_of_kind_max + 1);
  CHECK(kinds(store, "a") == Kinds{"refusal"});
  pass(time, limits::lines_window);
  REQUIRE(store.audit().add_counts());
  REQUIRE(store.audit().add_counts());
  const auto rows = store.audit().all().value();
  CHECK(rows.size() == limits::lines_of_kind_max + 2);
  CHECK(rows.front().who == "a stranger");
  CHECK(rows.back().who == "the server");
  CHECK(rows.back().kind == AuditKind::repeats);
  CHECK(rows.back().text == "refusal of a stranger: 90 more within 60 s");
}

TEST_CASE("a count that can't be written now is written later") {
  SimulatedTime time;
  StoreWorld world;
  Store& store = *world.store;
  for (int i = 0; i < 100; ++i)
    REQUIRE(store.audit().add(AuditKind::refusal, "", "a forged token"));
  pass(time, limits::lines_window);
  const auto run = [&store](const char* statement) {
    return sqlite3_exec(store.raw(), statement, nullptr, nullptr, nullptr);
  };
  REQUIRE(run("CREATE TEMP TRIGGER full BEFORE INSERT ON audit"
              " BEGIN SELECT RAISE(ABORT, 'there is no room'); END") == SQLITE_OK);
  REQUIRE(!store.audit().add_counts());
  CHECK(kinds(store).size() == limits::lines_of_kind_max);
  REQUIRE(run("DROP TRIGGER temp.full") == SQLITE_OK);
  REQUIRE(store.audit().add_counts());
  REQUIRE(store.audit().add_counts());
  const auto rows = store.audit().all().value();
  CHECK(rows.size() == limits::lines_of_kind_max + 1);
  CHECK(rows.back().text == "refusal of a stranger: 90 more within 60 s");
}

TEST_CASE("events do not push rows out of the audit, and no statement removes or changes one") {
  StoreWorld world;
  REQUIRE(world.store->audit().add(AuditKind::displacement, "a", "its other session has ended"));
  for (const char* statement : {"DELETE FROM audit", "DELETE FROM audit WHERE client = 'a'",
                                "UPDATE audit SET text = ''"}) {
    CAPTURE(statement);
    CHECK(sqlite3_exec(world.store->raw(), statement, nullptr, nullptr, nullptr) != SQLITE_OK);
  }
  CHECK(kinds(*world.store) == Kinds{"displacement"});
}

}  // namespace fl::test
