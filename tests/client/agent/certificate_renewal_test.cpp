// SPDX-License-Identifier: Apache-2.0
// When an agent asks its server for a new certificate, and which certificates it takes.
#include "tests/client/agent/conversation_world.hpp"

#include <string>
#include <vector>

namespace fl::test {

TEST_CASE("a certificate is renewed on the connection after one that found no run") {
  ConversationWorld world;
  world.keeper.is_due = true;
  world.hear_that_no_run_is_on();
  CHECK(world.keeper.authorities_seen.empty());

  REQUIRE(world.begin({renewed(), welcome()}));
  CHECK(world.keeper.taken == std::vector<std::string>{"the certificate"});
  REQUIRE(world.link->sent.size() == 1);
  CHECK(world.link->sent.front().header.renew().csr_pem() == "a request");
  CHECK(world.hello());

  REQUIRE(world.begin());  // The answer before was a Welcome.
  CHECK(world.link->sent.empty());
}

TEST_CASE("between two runs, nothing is asked for a certificate that is not due") {
  ConversationWorld world;
  world.hear_that_no_run_is_on();
  REQUIRE(world.begin({welcome()}));
  CHECK(world.keeper.authorities_seen.size() == 1);
  CHECK(world.link->sent.empty());
  CHECK(world.hello());
}

TEST_CASE("a server that does not renew a certificate between two runs is tried again") {
  ConversationWorld world;
  world.keeper.is_due = true;
  world.hear_that_no_run_is_on();
  const auto begun = world.begin({bye(wire::Bye::REFUSED, "not now")});
  REQUIRE(!begun);
  CHECK(begun.error().code() == Errc::unavailable);
  CHECK(begun.error().message() == "this client's certificate was not renewed: not now");
  CHECK(world.keeper.taken.empty());
}

TEST_CASE("whether a certificate is due depends on the authorities that Welcome names") {
  ConversationWorld world;
  REQUIRE(world.begin({welcome("the newest")}));
  REQUIRE(world.hello());
  REQUIRE(world.simulation.result_of(world.conversation.check_renewal()));
  CHECK(world.keeper.authorities_seen == std::vector<std::string>{"the newest"});
  CHECK(world.link->sent.size() == 1);  // Hello.
}

TEST_CASE("a server that does not renew certificates is not asked to") {
  for (const bool can_renew : {false, true}) {
    wire::Header listed = welcome();
    listed.mutable_welcome()->mutable_features();
    if (can_renew) listed.mutable_welcome()->mutable_features()->add_names("renewal");
    ConversationWorld world;
    world.keeper.is_due = true;
    REQUIRE(world.begin({listed}));
    REQUIRE(world.hello());
    REQUIRE(world.simulation.result_of(world.conversation.check_renewal()));
    CHECK(world.link->sent.size() == (can_renew ? 2 : 1));  // Hello, and perhaps Renew.
  }
}

TEST_CASE("a certificate that was not asked for is ignored, and one that was is taken once") {
  ConversationWorld world;
  REQUIRE(world.begin());
  CHECK(world.conversation.take_renewal(renewed("too early").renewed()));
  CHECK(world.keeper.taken.empty());

  world.keeper.is_due = true;
  REQUIRE(world.simulation.result_of(world.conversation.check_renewal()));
  CHECK(world.conversation.take_renewal(renewed("mine").renewed()));
  CHECK(world.conversation.take_renewal(renewed("a second one").renewed()));
  CHECK(world.keeper.taken == std::vector<std::string>{"mine"});
}

TEST_CASE("a certificate that was asked for on an earlier connection is ignored") {
  ConversationWorld world;
  world.keeper.is_due = true;
  REQUIRE(world.begin());
  REQUIRE(world.simulation.result_of(world.conversation.check_renewal()));
  REQUIRE(world.begin());
  CHECK(world.conversation.take_renewal(renewed().renewed()));
  CHECK(world.keeper.taken.empty());
}

TEST_CASE("a full disk puts off the renewal, and other errors of it end the client") {
  ConversationWorld world;
  world.keeper.is_due = true;
  REQUIRE(world.begin());
  REQUIRE(world.simulation.result_of(world.conversation.check_renewal()));
  const auto check_again = [&world] {
    return world.simulation.result_of(world.conversation.check_renewal());
  };
  for (const Errc code : {Errc::no_space, Errc::io}) {
    world.keeper.failure.reset();
    REQUIRE(check_again());
    world.keeper.failure = Error(code, "the disk");
    const bool is_put_off = code == Errc::no_space;
    CHECK(world.conversation.take_renewal(renewed().renewed()).has_value() == is_put_off);
    const std::size_t sent = world.link->sent.size();
    CHECK(check_again().has_value() == is_put_off);
    CHECK(world.link->sent.size() == sent);
  }
  world.keeper.failure.reset();
  REQUIRE(check_again());
  CHECK(world.conversation.take_renewal(renewed().renewed()));
  CHECK(world.keeper.taken.size() == 1);
}

TEST_CASE("without a keeper, no certificate is renewed") {
  ConversationWorld world(false);
  world.hear_that_no_run_is_on();
  REQUIRE(world.begin());
  CHECK(world.simulation.result_of(world.conversation.check_renewal()));
  CHECK(world.conversation.take_renewal(renewed().renewed()));
  CHECK(world.link->sent.empty());
}

}  // namespace fl::test
