// SPDX-License-Identifier: Apache-2.0
// An attempt as the server sees it: what it takes from members, when it goes on, and that its log
// alone brings it back.
#include "server/secure/attempt.hpp"

#include "tests/secure/attempt_world.hpp"
#include "tests/support/print_result.hpp"

#include <set>

using namespace fl;
using namespace fl::testing;

namespace {

using server::Attempt;
using Stage = Attempt::Stage;

std::shared_ptr<const secure::MemberList> listed(const std::vector<Person>& all,
                                                 std::uint32_t smallest = 3) {
  auto list = std::make_shared<secure::MemberList>();
  list->smallest_cohort = smallest;
  for (const Person& person : all)
    list->members.push_back({person.name, secure::signing_key(person.site)});
  return list;
}

/// A server's attempt and its log, with members that do as they should.
struct Server {
  explicit Server(std::size_t members, std::uint32_t smallest = 3)
      : all(people(members)),
        list(listed(all, smallest)),
        attempt(1, some_context(), list),
        here(names_of(first_indices(members))) {}

  [[nodiscard]] std::set<std::string> names_of(const Indices& indices) const {
    std::set<std::string> names;
    for (const std::uint32_t i : indices) names.insert(all[i].name);
    return names;
  }

  /// What a member's message does: "new", "known", or the error.
  std::string say(std::uint32_t member, const wire::Header& message) {
    const std::string& name = all[member].name;
    const auto checked = attempt.check(name, message);
    if (!checked) return checked.error().message();
    log.emplace_back(name, message);
    REQUIRE(attempt.apply(name, message));
    check_log();
    return *checked ? "new" : "known";
  }
  /// Ends the stage. Returns the error, or "".
  std::string decide(std::uint32_t quorum = 3) {
    const auto decision = attempt.decide(quorum, here);
    if (!decision) return decision.error().message();
    log.emplace_back("", *decision);
    REQUIRE(attempt.apply("", *decision));
    check_log();
    return "";
  }
  /// A server that reads the log stands where this one does.
  void check_log() const {
    Attempt again(1, some_context(), list);
    for (const auto& [name, message] : log) REQUIRE(again.apply(name, message));
    REQUIRE(again.stage() == attempt.stage());
    REQUIRE(again.missing() == attempt.missing());
    for (const Person& person : all) {
      const auto one = attempt.message_for(person.name);
      const auto other = again.message_for(person.name);
      REQUIRE(one.has_value() == other.has_value());
      if (one) REQUIRE(one->SerializeAsString() == other->SerializeAsString());
    }
  }

  [[nodiscard]] wire::Header keys(std::uint32_t member) const {
    wire::Header header;
    secure::write_keys(all[member].listed(some_context()).keys, *header.mutable_secure_keys());
    return header;
  }
  /// Takes a seat as the server's message says.
  void seat(std::uint32_t member) {
    const auto message = attempt.message_for(all[member].name).value();
    auto cohort = secure::read_cohort(message.secure_cohort(), some_context(), *list).value();
    seats.emplace(member, Seat::take(std::move(cohort), all[member].name, all[member].secrets(), 3,
                                     list_of(all))
                              .value());
  }
  [[nodiscard]] wire::Header shares(std::uint32_t member) const {
    wire::Header header;
    for (const auto& share : seats.at(member).sealed_shares().value())
      header.mutable_secure_shares()->add_sealed(secure::raw(share.bytes));
    return header;
  }
  /// Reads the inbox as the server's message says.
  void read_inbox(std::uint32_t member) {
    const auto message = attempt.message_for(all[member].name).value();
    const auto sharers = secure::read_indices(message.secure_inbox().sharers());
    std::vector<InboxItem> items;
    int next = 0;
    for (const std::uint32_t from : sharers) {
      if (from == member) continue;
      const Bytes bytes = bytes_of(message.secure_inbox().sealed(next++));
      items.push_back({from, {bytes.begin(), bytes.end()}});
    }
    REQUIRE(seats.at(member).read_inbox(sharers, items));
  }
  static wire::Header words() {
    wire::Header header;
    header.mutable_begin()->set_bytes(8);
    return header;
  }
  [[nodiscard]] wire::Header consent(std::uint32_t member) const {
    const auto message = attempt.message_for(all[member].name).value();
    survivors = secure::read_indices(message.secure_survivors().survivors());
    const auto signed_list = seats.at(member).consent(survivors, all[member].site).value();
    wire::Header header;
    header.mutable_secure_consent()->set_signature(secure::raw(signed_list.signature));
    return header;
  }
  [[nodiscard]] wire::Header reveal(std::uint32_t member) const {
    const auto message = attempt.message_for(all[member].name).value();
    const auto consents = secure::read_consents(message.secure_ask()).value();
    wire::Header header;
    secure::write_reveal(seats.at(member).reveal(survivors, consents).value(),
                         *header.mutable_secure_reveal());
    return header;
  }

  /// Goes on to a stage, with all members that are not gone.
  void reach(Stage wanted, const Indices& sharing, const Indices& sending) {
    for (std::uint32_t i = 0; i < all.size(); ++i) REQUIRE(say(i, keys(i)) == "new");
    REQUIRE(decide() == "");
    if (wanted == Stage::shares) return;
    for (const std::uint32_t i : sharing) {
      seat(i);
      REQUIRE(say(i, shares(i)) == "new");
    }
    REQUIRE(decide() == "");
    for (const std::uint32_t i : sharing) read_inbox(i);
    if (wanted == Stage::words) return;
    for (const std::uint32_t i : sending) REQUIRE(say(i, words()) == "new");
    REQUIRE(decide() == "");
  }

  std::vector<Person> all;
  std::shared_ptr<const secure::MemberList> list;
  Attempt attempt;
  std::set<std::string> here;
  std::vector<std::pair<std::string, wire::Header>> log;
  std::map<std::uint32_t, Seat> seats;
  mutable Indices survivors;
};

}  // namespace

TEST_CASE("an attempt goes from keys to the masks, also without some of its members") {
  Server server(7);
  server.reach(Stage::consents, {0, 1, 2, 3, 5, 6}, {0, 1, 3, 5, 6});
  CHECK(server.attempt.survivors() ==
        std::vector<std::string>{"site-000", "site-001", "site-003", "site-005", "site-006"});
  CHECK_FALSE(server.attempt.message_for("site-002"));  // It has shared, and sent no words.
  CHECK_FALSE(server.attempt.message_for("site-004"));
  CHECK(server.attempt.words_of("site-002") == nullptr);
  for (const std::uint32_t i : {0u, 1u, 3u, 5u, 6u}) {
    CHECK(server.attempt.stage() == Stage::consents);
    CHECK(server.say(i, server.consent(i)) == "new");
  }
  CHECK(server.attempt.stage() == Stage::reveals);
  for (const std::uint32_t i : {0u, 1u, 3u, 5u, 6u}) {
    CHECK(server.attempt.stage() == Stage::reveals);
    CHECK(server.say(i, server.reveal(i)) == "new");
  }
  CHECK(server.attempt.stage() == Stage::opened);
  // Five masks of the survivors' own, and those that each has with the member that is gone.
  CHECK(server.attempt.removals().value().size() == 10);
  CHECK(server.attempt.liars().empty());
}

TEST_CASE("who signs late is asked late") {
  Server server(4);
  server.reach(Stage::consents, {0, 1, 2, 3}, {0, 1, 2, 3});
  for (const std::uint32_t i : {0u, 1u, 2u}) server.say(i, server.consent(i));
  CHECK(server.attempt.stage() == Stage::reveals);
  CHECK(server.attempt.message_for("site-000")->has_secure_ask());
  REQUIRE(server.attempt.message_for("site-003")->has_secure_survivors());
  CHECK(server.say(3, server.consent(3)) == "new");
  CHECK(server.attempt.message_for("site-003")->has_secure_ask());
}

TEST_CASE("keys that are not a member's own for this attempt are refused") {
  Server server(4);
  const auto stranger = people(5)[4];
  CHECK(says(server.attempt.check(stranger.name, server.keys(0)).error().message(),
             "is not in the member list"));
  CHECK(says(server.say(0, server.keys(1)), "not signed by its site key"));
  CHECK(server.say(1, server.keys(1)) == "new");
  CHECK(server.say(1, server.keys(1)) == "known");
  wire::Header other = server.keys(1);
  const Person later(server.all[1].name, 2);
  secure::write_keys(later.listed(some_context()).keys, *other.mutable_secure_keys());
  CHECK(says(server.say(1, other), "other keys for this task"));
  // One that takes another's public keys, and signs them itself.
  secure::MemberKeys stolen = server.all[1].listed(some_context()).keys;
  stolen.signature = secure::sign(
      server.all[2].site,
      secure::digest_of({bytes_of("tributary keys 1"), some_context(), bytes_of(server.all[2].name),
                         stolen.mask_key, stolen.share_key, stolen.self_digest}));
  secure::write_keys(stolen, *other.mutable_secure_keys());
  CHECK(says(server.say(2, other), "or one that is another's"));
  other.mutable_secure_keys()->set_mask_key("short");
  CHECK(says(server.say(2, other), "mask_key has 5 bytes, not 32"));
}

TEST_CASE("shares, signatures and answers that do not fit are refused, and change nothing") {
  Server server(4);
  server.reach(Stage::shares, {}, {});
  server.seat(0);
  wire::Header shares = server.shares(0);
  shares.mutable_secure_shares()->mutable_sealed(1)->pop_back();
  CHECK(says(server.say(0, shares), "a sealed share has 79 bytes, not 80"));
  shares.mutable_secure_shares()->mutable_sealed()->RemoveLast();
  CHECK(says(server.say(0, shares), "has sealed 2 shares, not 3"));
  CHECK(server.say(0, server.shares(0)) == "new");
  CHECK(server.say(0, server.shares(0)) == "known");
  CHECK(server.say(0, Server::words()) == "known");  // Nobody has asked for words yet.
  for (const std::uint32_t i : {1u, 2u, 3u}) {
    server.seat(i);
    server.say(i, server.shares(i));
  }
  REQUIRE(server.decide() == "");
  for (std::uint32_t i = 0; i < 4; ++i) server.read_inbox(i);
  for (const std::uint32_t i : {0u, 1u, 2u}) CHECK(server.say(i, Server::words()) == "new");
  REQUIRE(server.decide() == "");
  CHECK(server.say(3, Server::words()) == "known");  // Too late.
  const wire::Header right = server.consent(0);
  CHECK(says(server.say(3, right), "that it is not in"));
  CHECK(says(server.say(1, right), "has not signed this list"));
  for (const std::uint32_t i : {0u, 1u, 2u}) CHECK(server.say(i, server.consent(i)) == "new");
  wire::Header answer = server.reveal(0);
  CHECK(says(server.say(1, answer), "another self seed"));
  CHECK(says(server.say(3, answer), "no survivor"));
  answer.mutable_secure_reveal()->mutable_shares()->RemoveLast();
  CHECK(says(server.say(0, answer), "too few shares"));
  CHECK(server.say(0, server.reveal(0)) == "new");
}

TEST_CASE("an attempt with too few members fails, and says how many it needs") {
  Server server(7, 5);
  for (std::uint32_t i = 0; i < 4; ++i) server.say(i, server.keys(i));
  CHECK(says(server.decide(), "4 members have trained, and 5 are needed"));
  for (std::uint32_t i = 4; i < 7; ++i) server.say(i, server.keys(i));
  CHECK(says(server.decide(8), "7 members have trained, and 8 are needed"));
  REQUIRE(server.decide() == "");
  for (std::uint32_t i = 0; i < 7; ++i) {
    server.seat(i);
    if (i < 4) server.say(i, server.shares(i));
  }
  CHECK(says(server.decide(), "4 members have shared their secrets, and 5 are needed"));
  for (std::uint32_t i = 4; i < 7; ++i) server.say(i, server.shares(i));
  server.here.erase("site-006");  // It left after it had shared.
  REQUIRE(server.decide() == "");
  CHECK(server.attempt.missing().size() == 6);
  for (std::uint32_t i = 0; i < 6; ++i) server.read_inbox(i);
  for (std::uint32_t i = 0; i < 4; ++i) server.say(i, Server::words());
  CHECK(server.attempt.missing() == std::vector<std::string>{"site-004", "site-005"});
  CHECK(says(server.decide(), "4 members have sent their words, and 5 are needed"));
}

TEST_CASE("two messages that passed while neither was applied: the first one counts") {
  Server server(3);
  const wire::Header keys = server.keys(0);
  CHECK(server.attempt.check("site-000", keys).value());
  REQUIRE(server.attempt.apply("site-000", keys));
  wire::Header other;
  secure::write_keys(Person("site-000", 2).listed(some_context()).keys,
                     *other.mutable_secure_keys());
  REQUIRE(server.attempt.apply("site-000", other));
  for (const std::uint32_t i : {1u, 2u})
    server.attempt.apply(server.all[i].name, server.keys(i)).value();
  const auto decision = server.attempt.decide(3, server.here).value();
  CHECK(decision.secure_cohort().members(0).mask_key() == keys.secure_keys().mask_key());
}
