// SPDX-License-Identifier: Apache-2.0
// An attempt as the server sees it: what it takes from members, when it goes on, and that its log
// alone brings it back.
#include "server/secure/attempt.hpp"

#include "tests/secure/attempt_world.hpp"
#include "tests/secure/says.hpp"
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
    secure::write_reveal(seats.at(member).reveal(survivors, consents).value(), member, sharers,
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
    sharers = sharing;
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
  Indices sharers;
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
  Unlocking unlocking = server.attempt.unlocking();
  CHECK(unlocking.removals().value().size() == 10);
  CHECK(unlocking.liars().empty());
}

TEST_CASE("a wrong answer is made up for by one answer more") {
  Server server(7);
  const Indices all = first_indices(7);
  server.reach(Stage::consents, all, {0, 1, 2, 3, 4, 5});
  for (const std::uint32_t i : {0u, 1u, 2u, 3u, 4u, 5u}) server.say(i, server.consent(i));
  wire::Header wrong = server.reveal(2);
  wrong.mutable_secure_reveal()->mutable_shares(5)->at(9) ^= 1;  // About the member that is gone.
  for (const std::uint32_t i : {0u, 1u, 3u, 4u}) CHECK(server.say(i, server.reveal(i)) == "new");
  const wire::Header right = server.reveal(2);
  CHECK(server.say(2, wrong) == "new");
  CHECK(server.say(2, right) == "known");
  REQUIRE(server.attempt.stage() == Stage::opened);
  CHECK(says(Unlocking(server.attempt.unlocking()).removals().error().message(),
             "5 shares of the secrets of 'site-006' are not right"));
  REQUIRE(server.attempt.want_more());
  CHECK(server.attempt.stage() == Stage::reveals);
  CHECK(server.attempt.missing() == std::vector<std::string>{"site-005"});
  CHECK(server.attempt.can_open_without({}));
  CHECK_FALSE(server.attempt.can_open_without({"site-005"}));
  REQUIRE(server.attempt.apply("site-005", server.reveal(5)));
  REQUIRE(server.attempt.stage() == Stage::opened);
  Unlocking unlocking = server.attempt.unlocking();
  CHECK(unlocking.removals().value().size() == 12);
  CHECK(unlocking.liars() == Indices{2});
  CHECK_FALSE(server.attempt.want_more());
}

TEST_CASE("answers that come when there are enough are kept, for the case that some are wrong") {
  Server server(4);
  server.reach(Stage::consents, first_indices(4), first_indices(4));
  for (std::uint32_t i = 0; i < 4; ++i) server.say(i, server.consent(i));
  CHECK(server.attempt.can_open_without({"site-003"}));
  CHECK_FALSE(server.attempt.can_open_without({"site-002", "site-003"}));
  const wire::Header last = server.reveal(3);
  for (std::uint32_t i = 0; i < 3; ++i) CHECK(server.say(i, server.reveal(i)) == "new");
  REQUIRE(server.attempt.stage() == Stage::opened);
  CHECK(server.say(3, last) == "new");
  CHECK(server.say(3, last) == "known");
  CHECK_FALSE(server.attempt.want_more());
}

TEST_CASE("too few signatures to come are as bad as too few answers") {
  Server server(4);
  server.reach(Stage::consents, first_indices(4), first_indices(4));
  CHECK(server.attempt.can_open_without({"site-000"}));
  CHECK_FALSE(server.attempt.can_open_without({"site-000", "site-001"}));
  server.say(0, server.consent(0));
  CHECK(server.attempt.can_open_without({"site-001"}));
  Server three(3);  // Two answers are enough, and three signatures are not.
  three.reach(Stage::consents, first_indices(3), first_indices(3));
  CHECK_FALSE(three.attempt.can_open_without({"site-000"}));
  three.say(0, three.consent(0));
  CHECK(three.attempt.can_open_without({"site-000"}));
}

TEST_CASE("a member that takes part with more than there are is left out of the cohort") {
  Server server(6);
  const auto keys = [&](std::uint32_t member, std::uint32_t least) {
    wire::Header header = server.keys(member);
    header.mutable_secure_keys()->set_cohort_min(least);
    return header;
  };
  CHECK(says(server.say(0, keys(0, 129)), "takes part with 129 members at least, and 128 are"));
  CHECK(server.say(0, keys(0, 6)) == "new");
  for (const std::uint32_t i : {1u, 2u}) CHECK(server.say(i, keys(i, 4)) == "new");
  CHECK(server.say(3, keys(3, 3)) == "new");
  CHECK(says(server.decide(),
             "4 members have trained, and 4 of them take part with more only (--min-cohort)"));
  for (const std::uint32_t i : {4u, 5u}) CHECK(server.say(i, keys(i, 3)) == "new");
  server.here.erase("site-005");
  REQUIRE(server.decide() == "");  // Without the one that wants six.
  REQUIRE(server.attempt.size() == 4);
}

TEST_CASE("what the members of a cohort ask for holds at each step") {
  Server server(7);
  for (std::uint32_t i = 0; i < 7; ++i) {
    wire::Header header = server.keys(i);
    header.mutable_secure_keys()->set_cohort_min(i == 3 ? 7 : 3);
    server.say(i, header);
  }
  REQUIRE(server.decide() == "");
  for (std::uint32_t i = 0; i < 6; ++i) {
    server.seat(i);
    server.say(i, server.shares(i));
  }
  CHECK(says(server.decide(), "6 members have shared their secrets, and 7 are needed"));
}

TEST_CASE("an attempt fails before anybody signs if its members can't open what one has sealed") {
  for (const bool is_gone : {false, true}) {
    Server server(7);
    server.reach(Stage::words, first_indices(7), {});
    const auto words = [&](std::uint32_t reads_not) {
      wire::Header header = Server::words();
      header.mutable_begin()->add_unreadable(reads_not);
      return header;
    };
    CHECK(says(server.say(0, words(0)), "of a member that has sent it none"));
    CHECK(says(server.say(0, words(7)), "members that it can't read are not ascending"));
    for (const std::uint32_t i : {0u, 1u}) CHECK(server.say(i, words(4)) == "new");
    for (const std::uint32_t i : {2u, 3u, 5u, 6u}) CHECK(server.say(i, Server::words()) == "new");
    if (!is_gone) CHECK(server.say(4, Server::words()) == "new");
    // Four of the six others can read it, and five are needed.
    CHECK(says(server.decide(), "too few members can open what others have sealed"));
    const auto unread = server.attempt.unread();
    REQUIRE(unread.size() == 1);
    CHECK(unread.at("site-004") == std::vector<std::string>{"site-000", "site-001"});
  }
  // One complaint of six leaves five.
  Server server(7);
  server.reach(Stage::words, first_indices(7), {});
  wire::Header one = Server::words();
  one.mutable_begin()->add_unreadable(4);
  CHECK(server.say(0, one) == "new");
  for (std::uint32_t i = 1; i < 7; ++i) server.say(i, Server::words());
  CHECK(server.attempt.unread().empty());
  CHECK(server.decide() == "");
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
  server.sharers = first_indices(4);
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
  for (int i = 0; i < 2; ++i) answer.mutable_secure_reveal()->add_shares(std::string(32, 'x'));
  CHECK(says(server.say(0, answer), "too many shares"));
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
