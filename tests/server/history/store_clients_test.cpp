// SPDX-License-Identifier: Apache-2.0
// Tokens and clients: no token is used twice, and a revoked client stays out.
#include "tests/server/history/store_world.hpp"

namespace fl::test {

TEST_CASE("a token gives its client a role and a limit, which only another token changes") {
  StoreWorld world;
  const auto member = [&] { return world.store->members().find("site-a").value().value(); };
  TokenRecord token = some_token("t1", "site-a");
  token.evaluator = true;
  token.examples_max = 500;
  REQUIRE(world.store->members().add_token(token));
  REQUIRE(world.store->members().use_token("t1", some_client("site-a", "01"), "k1"));
  CHECK(member().evaluator);
  CHECK(member().examples_max == 500);
  REQUIRE(world.store->members().touch("site-a", false));
  CHECK(member().evaluator);
  REQUIRE(world.store->members().add_token(some_token("t2", "site-a")));
  REQUIRE(world.store->members().use_token("t2", some_client("site-a", "02"), "k2"));
  CHECK_FALSE(member().evaluator);
  CHECK(member().examples_max == 0);
  REQUIRE(world.store->members().touch("simulated", false));
  REQUIRE(world.store->members().touch("simulated", true));
  CHECK(world.store->members().find("simulated").value()->evaluator);
}

TEST_CASE("members that are here are seen now, with what they train") {
  StoreWorld world;
  REQUIRE(world.store->members().add_token(some_token("t1", "site-a")));
  REQUIRE(world.store->members().use_token("t1", some_client("site-a", "01"), "k1"));
  const auto member = [&](std::string_view name) {
    return world.store->members().find(name).value().value();
  };
  REQUIRE(
      world.store->members().touch({{"site-a", true, "lenet", ""}, {"site-b", false, "", "ab12"}}));
  CHECK(member("site-a").last_seen_at == member("site-b").last_seen_at);
  CHECK(member("site-a").last_seen_at > 0);
  CHECK(member("site-a").model == "lenet");
  CHECK_FALSE(member("site-a").evaluator);  // As it was enrolled.
  CHECK(member("site-b").tensors == "ab12");
  REQUIRE(world.store->members().touch({{"site-a", false, "", "cd34"}}));
  CHECK(member("site-a").model.empty());
  CHECK(member("site-a").tensors == "cd34");
  CHECK(member("site-a").last_seen_at > member("site-b").last_seen_at);
}

TEST_CASE("a token is stored without its secret and used once") {
  StoreWorld world;
  REQUIRE(world.store->members().add_token(some_token("t1", "site-a")));
  CHECK(code_of(world.store->members().add_token(some_token("t1", "site-b"))) == Errc::conflict);
  CHECK(!world.store->members().find_token("t2").value());
  TokenRecord token = world.store->members().find_token("t1").value().value();
  CHECK(token.id == "t1");
  CHECK(token.name == "site-a");
  CHECK(token.secret_hash == std::string(64, 'a'));
  CHECK(token.expires_at == 9000);
  CHECK(token.used_at == 0);
  CHECK(code_of(world.store->members().use_token("t2", some_client("site-a", "01"), "k1")) ==
        Errc::not_found);
  CHECK(code_of(world.store->members().use_token("t1", some_client("site-b", "01"), "k1")) ==
        Errc::invalid_input);
  CHECK(!world.store->members().find("site-b").value());
  REQUIRE(world.store->members().use_token("t1", some_client("site-a", "01"), "k1"));
  CHECK(world.store->members().find_token("t1").value()->used_at > 0);
  CHECK(code_of(world.store->members().use_token("t1", some_client("site-a", "02"), "k2")) ==
        Errc::conflict);
  const ClientRecord client = world.store->members().find("site-a").value().value();
  CHECK(client.certificate_serial == "01");
  CHECK(client.enrolled_at == 5000);
  CHECK(client.last_seen_at == 0);
  CHECK(client.revoked_at == 0);
}

TEST_CASE("an unused token that has expired stays so when the clock goes back") {
  StoreWorld world;
  REQUIRE(world.store->members().add_token(some_token("t1", "site-a")));
  REQUIRE(world.store->members().add_token(some_token("t2", "site-b")));
  REQUIRE(world.store->members().use_token("t2", some_client("site-b", "01"), "k1"));
  REQUIRE(world.store->members().expire_tokens(8999));
  CHECK(world.store->members().find_token("t1").value()->expires_at == 9000);
  REQUIRE(world.store->members().expire_tokens(9001));
  REQUIRE(world.store->members().expire_tokens(100));
  CHECK(world.store->members().find_token("t1").value()->expires_at == 0);
  CHECK(world.store->members().find_token("t2").value()->expires_at == 9000);
}

TEST_CASE("a client revoked between invitation and joining stays out") {
  StoreWorld world;
  REQUIRE(world.store->members().touch("site-a", false));
  REQUIRE(world.store->members().add_token(some_token("t1", "site-a")));
  REQUIRE(world.store->members().revoke("site-a", "root"));
  CHECK(code_of(world.store->members().use_token("t1", some_client("site-a", "01"), "k1")) ==
        Errc::conflict);
  CHECK(world.store->members().find_token("t1").value()->used_at == 0);
  CHECK(world.store->members().find("site-a").value()->certificate_serial.empty());
}

TEST_CASE("committing a round sets the last-seen time of the clients whose updates count") {
  StoreWorld world;
  const auto tasks = world.start_round({"a", "b"});
  REQUIRE(world.store->members().touch("a", false));
  REQUIRE(world.store->members().touch("b", false));
  const double came = world.store->members().find("b").value()->last_seen_at;
  REQUIRE(world.store->rounds().decide({accepted(tasks[0])}));
  RoundCommit commit = some_commit(world.run, 1);
  commit.ended_at = came + 60;
  REQUIRE(world.store->rounds().commit(commit));
  CHECK(world.store->members().find("a").value()->last_seen_at == came + 60);
  CHECK(world.store->members().find("b").value()->last_seen_at == came);
}

TEST_CASE("clients are seen, renewed, revoked and listed by name") {
  StoreWorld world;
  REQUIRE(world.store->members().touch("b", false));
  REQUIRE(world.store->members().touch("a", true));
  const double first_seen = world.store->members().find("b").value()->last_seen_at;
  REQUIRE(world.store->members().touch("b", false));
  CHECK(world.store->members().find("b").value()->last_seen_at > first_seen);
  CHECK(world.store->members().find("b").value()->enrolled_at == first_seen);
  REQUIRE(world.store->members().add_token(some_token("t1", "b")));
  REQUIRE(world.store->members().use_token("t1", some_client("b", "fe"), "k1"));
  REQUIRE(world.store->members().add_certificate("b", "ff", "fe"));
  CHECK(world.store->members().find("b").value()->certificate_serial == "ff");
  CHECK(code_of(world.store->members().add_certificate("c", "ff", "fe")) == Errc::not_found);
  CHECK(code_of(world.store->members().revoke("c", "root")) == Errc::not_found);
  REQUIRE(world.store->members().add_token(some_token("t9", "c")));
  REQUIRE(world.store->members().revoke("c", "root"));
  CHECK(!world.store->members().find_token("t9").value());
  REQUIRE(world.store->members().revoke("b", "root"));
  const double revoked_at = world.store->members().find("b").value()->revoked_at;
  CHECK(revoked_at > 0);
  REQUIRE(world.store->members().revoke("b", "root"));
  CHECK(world.store->members().find("b").value()->revoked_at == revoked_at);
  CHECK(code_of(world.store->members().add_certificate("b", "00", "fe")) == Errc::conflict);
  const auto clients = world.store->members().all().value();
  REQUIRE(clients.size() == 2);
  CHECK(clients[0].name == "a");
  CHECK(clients[0].evaluator);
  CHECK(clients[1].name == "b");
  CHECK(!clients[1].evaluator);
}

TEST_CASE("a used token works again for the same key, until the name joins with another token") {
  StoreWorld world;
  auto& store = *world.store;
  REQUIRE(store.members().add_token(some_token("t1", "a")));
  REQUIRE(store.members().add_token(some_token("t2", "a")));
  REQUIRE(store.members().use_token("t1", some_client("a", "01"), "k1"));
  CHECK(store.members().find_token("t1").value()->key_digest == "k1");
  const double used_at = store.members().find_token("t1").value()->used_at;
  REQUIRE(store.members().use_token("t1", some_client("a", "02"), "k1"));
  CHECK(store.members().find_token("t1").value()->used_at == used_at);
  CHECK(code_of(store.members().admit("a", "01")) == Errc::unauthenticated);
  CHECK(store.members().admit("a", "02"));

  REQUIRE(store.members().add_token(some_token("t3", "a")));
  REQUIRE(store.members().use_token("t2", some_client("a", "03"), "k2"));
  REQUIRE(store.members().use_token("t3", some_client("a", "04"), "k3"));
  CHECK(code_of(store.members().use_token("t1", some_client("a", "05"), "k1")) == Errc::conflict);
  CHECK(store.members().admit("a", "04"));
}

TEST_CASE("a certificate is valid until a newer one was used; joining again ends all others") {
  StoreWorld world;
  auto& store = *world.store;
  CHECK(code_of(store.members().admit("a", "01")) == Errc::unauthenticated);
  REQUIRE(store.members().add_token(some_token("t1", "a")));
  REQUIRE(store.members().add_token(some_token("t2", "a")));
  REQUIRE(store.members().use_token("t1", some_client("a", "01"), "k1"));
  REQUIRE(store.members().add_certificate("a", "02", "01"));
  REQUIRE(store.members().add_certificate("a", "03", "01"));
  REQUIRE(store.members().add_certificate("a", "04", "01"));
  CHECK(store.members().admit("a", "01"));  // The client may not have received the newer ones.
  CHECK(store.members().admit("a", "03"));
  CHECK(code_of(store.members().admit("a", "02")) == Errc::unauthenticated);
  CHECK(code_of(store.members().admit("a", "01")) == Errc::unauthenticated);
  CHECK(store.members().admit("a", "04"));
  CHECK(code_of(store.members().admit("b", "04")) == Errc::unauthenticated);

  for (const char* serial : {"10", "11", "12", "13", "14"})
    REQUIRE(store.members().add_certificate("a", serial, "04"));
  CHECK(code_of(store.members().admit("a", "10")) ==
        Errc::unauthenticated);             // Members::certificates_max.
  CHECK(store.members().admit("a", "04"));  // The certificate with which the others were requested.
  CHECK(store.members().admit("a", "11"));
  CHECK(code_of(store.members().add_certificate("a", "15", "04")) == Errc::unauthenticated);
  REQUIRE(store.members().use_token("t2", some_client("a", "21"), "k2"));
  for (const char* serial : {"11", "12", "13", "14"})
    CHECK(code_of(store.members().admit("a", serial)) == Errc::unauthenticated);
  CHECK(store.members().admit("a", "21"));
  REQUIRE(store.members().revoke("a", "root"));
  CHECK(code_of(store.members().admit("a", "21")) == Errc::unauthenticated);
}

}  // namespace fl::test
