// SPDX-License-Identifier: Apache-2.0
// A malicious server, and malicious members: each lie is refused, and the error says what it is.
#include "tests/secure/attempt_world.hpp"
#include "tests/secure/says.hpp"

#include <functional>

using namespace fl;
using namespace fl::testing;

namespace {

std::string error_of(const auto& result) {
  return result.has_value() ? "no error" : result.error().message();
}

}  // namespace

TEST_CASE("a member takes no seat in a cohort that a server has made up") {
  const auto all = people(5);
  const auto take = [&](const Cohort& cohort, std::size_t least = 3) {
    return error_of(Seat::take(cohort, all[1].name, all[1].secrets(), least, list_of(all)));
  };
  const Cohort right = cohort_of(all);
  REQUIRE(take(right) == "no error");
  const auto with = [&](const std::function<void(Cohort&)>& change) {
    Cohort cohort = right;
    change(cohort);
    return take(cohort);
  };

  CHECK(says(take(right, 6), "takes part with 6 at least"));
  CHECK(says(with([](Cohort& c) { c.members.resize(2); }), "3 to 128 members, not 2"));
  CHECK(says(with([](Cohort& c) { c.members.erase(c.members.begin() + 1); }), "lacks this member"));
  CHECK(says(with([](Cohort& c) { std::swap(c.members[0], c.members[3]); }), "not in order"));
  CHECK(says(with([](Cohort& c) { c.members[2] = c.members[3]; }), "one name"));
  // Somebody whom nobody has signed.
  CHECK(says(with([](Cohort& c) {
               const Person invented("site-999");
               c.members.push_back(invented.listed(some_context()));
             }),
             "'site-999' is not in the member list"));
  CHECK(says(with([](Cohort& c) {
               Person forged("site-003");
               forged.site = secret_from("the server's own");
               c.members[3] = forged.listed(some_context());
             }),
             "'site-003' has another site key in the member list"));
  // Keys of the server's in another's place: it does not have the site key.
  CHECK(says(with([](Cohort& c) {
               const auto keys = Person("site-003", 7).secrets();
               c.members[3].keys.mask_key = secure::agreement_key(keys.mask());
             }),
             "'site-003' are not signed by its site key"));
  // Keys for another version, settings or attempt.
  CHECK(says(with([](Cohort& c) {
               const Public other = secure::digest_of({bytes_of("another version")});
               c.members[3] = Person("site-003").listed(other);
             }),
             "'site-003' are not signed by its site key for this attempt"));
  CHECK(says(with([](Cohort& c) { c.context = secure::digest_of({bytes_of("another model")}); }),
             "not signed by its site key for this attempt"));
  CHECK(says(with([&](Cohort& c) {
               // Two members with the keys of one, both signed.
               Person twin("site-003");
               twin.seed = all[2].seed;
               c.members[3] = twin.listed(some_context());
             }),
             "'site-003' has a key that is in the cohort twice"));
  // This member's own keys of an earlier attempt.
  CHECK(says(with([](Cohort& c) { c.members[1] = Person("site-001", 9).listed(some_context()); }),
             "other keys of this member than it has made"));
}

TEST_CASE("a key of small order is refused before anything is shared") {
  auto all = people(3);
  Cohort cohort = cohort_of(all);
  const auto with_key = [&](Public secure::MemberKeys::*which) {
    Cohort changed = cohort;
    auto& keys = changed.members[2].keys;
    keys.*which = Public{};
    keys.signature = secure::sign(
        all[2].site,
        secure::digest_of({bytes_of("tributary keys 1"), some_context(), bytes_of(all[2].name),
                           keys.mask_key, keys.share_key, keys.self_digest}));
    return changed;
  };
  const auto seat = Seat::take(with_key(&secure::MemberKeys::share_key), all[0].name,
                               all[0].secrets(), 3, list_of(all))
                        .value();
  CHECK(says(error_of(seat.sealed_shares()), "small order"));
}

TEST_CASE("a server that tells members of different sharers gets no two lists signed") {
  // With one of five on the server's side: one list for 0 and 1, another for 2 and 3.
  Table table(people(5));
  const auto inbox_error = [&](std::uint32_t member, const Indices& sharers) {
    return error_of(table.seats[member].read_inbox(sharers, table.inbox(member, sharers)));
  };
  CHECK(says(inbox_error(2, {2, 3, 4}), "are left, and 4 are the fewest"));
  const Indices four{0, 1, 2, 4};
  table.deal(four);
  CHECK(says(error_of(table.seats[0].consent({0, 1, 4}, table.all[0].site)),
             "are left, and 4 are the fewest"));
  CHECK(says(error_of(table.seats[0].reveal(four, table.consents({0, 1, 4}, four))),
             "3 members have signed the survivors, and 4 must"));
}

TEST_CASE("a member believes no list of sharers that hides some, and no shares of a stranger") {
  Table table(people(5));
  const Indices sharers = first_indices(5);
  Seat& seat = table.seats[0];
  const auto read = [&](const Indices& of, const std::vector<InboxItem>& inbox) {
    return error_of(seat.read_inbox(of, inbox));
  };
  CHECK(says(read({0, 1}, table.inbox(0, {0, 1})), "are left, and 4 are the fewest"));
  CHECK(says(read({1, 2, 3, 4}, table.inbox(0, sharers)), "this member is not among those"));
  CHECK(says(read({0, 1, 1, 2}, table.inbox(0, sharers)), "not ascending"));
  CHECK(says(read({0, 1, 2, 9}, table.inbox(0, sharers)), "not ascending"));
  CHECK(says(read(sharers, table.inbox(0, {0, 1, 2, 3})), "the shares of 'site-004' are missing"));
  // Shares for another member, shares of another sender, and changed ones are as none: nothing of
  // theirs is revealed later.
  auto others = table.inbox(0, sharers);
  others[1].bytes = table.inbox(1, sharers)[1].bytes;
  CHECK(read(sharers, others) == "no error");
  CHECK(seat.unreadable() == Indices{2});
  others = table.inbox(0, sharers);
  std::swap(others[0].bytes, others[1].bytes);
  CHECK(read(sharers, others) == "no error");
  CHECK(seat.unreadable() == Indices{1, 2});
  others = table.inbox(0, sharers);
  others[3].bytes.back() ^= std::byte{1};
  CHECK(read(sharers, others) == "no error");
  CHECK(seat.unreadable() == Indices{4});
  // All of another attempt.
  const Table before(people(5, 2));
  CHECK(says(read(sharers, before.inbox(0, sharers)), "the shares of 'site-001'"));
  CHECK(read(sharers, table.inbox(0, sharers)) == "no error");
  CHECK(seat.unreadable().empty());

  Table strict(people(5));
  strict.seats[0] =
      Seat::take(strict.cohort, "site-000", strict.all[0].secrets(), 5, list_of(strict.all))
          .value();
  CHECK(says(error_of(strict.seats[0].read_inbox({0, 1, 2, 3}, strict.inbox(0, {0, 1, 2, 3}))),
             "takes part with 5 at least"));
}

TEST_CASE("a member signs and reveals for a list only that most have signed") {
  Table table(people(7));
  const Indices sharers = first_indices(7);
  table.deal(sharers);
  const Seat& seat = table.seats[0];
  const auto sign = [&](const Indices& survivors) {
    return error_of(seat.consent(survivors, table.all[0].site));
  };
  CHECK(says(sign({0, 1, 2, 3}), "4 of 7 members are left, and 5 are the fewest"));
  CHECK(says(sign({1, 2, 3, 4, 5}), "this member is not among the survivors"));
  CHECK(says(sign({0, 1, 2, 3, 4, 4}), "not ascending"));
  CHECK(sign({0, 1, 2, 3, 4}) == "no error");

  const Indices survivors{0, 1, 2, 3, 4, 5};
  const Indices another{0, 1, 2, 3, 4, 6};
  auto consents = table.consents({0, 1, 2, 3, 4}, survivors);
  CHECK(error_of(seat.reveal(survivors, consents)) == "no error");
  const auto reveal = [&](const std::vector<secure::Consent>& of) {
    return error_of(seat.reveal(survivors, of));
  };
  CHECK(says(reveal(table.consents({0, 1, 2, 3}, survivors)),
             "4 members have signed the survivors, and 5 must"));
  CHECK(says(error_of(seat.reveal(another, consents)), "has not signed this list"));
  auto twice = consents;
  twice.back() = twice.front();
  CHECK(says(reveal(twice), "has signed the survivors twice"));
  auto foreign = consents;
  foreign.back().signature =
      secure::sign(secret_from("the server's own"),
                   secure::consent_digest(seat.transcript(), sharers, survivors));
  CHECK(says(reveal(foreign), "'site-004' has not signed this list"));
  // A signature for the same names in another attempt.
  Table other(people(7, 2));
  other.deal(sharers);
  auto old = consents;
  old.back() = other.consents({4}, survivors).front();
  CHECK(says(reveal(old), "'site-004' has not signed this list"));
  // A smaller list of sharers, with signatures for it.
  Table fewer(people(7));
  fewer.deal({0, 1, 2, 3, 4, 5});
  CHECK(says(reveal(fewer.consents({0, 1, 2, 3, 4}, survivors)), "has not signed this list"));
}

TEST_CASE("of a member never both secrets are revealed, whatever the list") {
  Table table(people(7));
  table.deal(first_indices(7));
  for (const Indices& survivors : {Indices{0, 1, 2, 3, 4}, Indices{0, 1, 2, 3, 4, 5, 6}}) {
    const auto consents = table.consents({0, 1, 2, 3, 4}, survivors);
    const auto reveal = table.seats[0].reveal(survivors, consents).value();
    CHECK(reveal.shares.size() == 6);
    for (const auto& share : reveal.shares) {
      const bool has_survived = std::ranges::binary_search(survivors, share.about);
      CHECK(share.of ==
            (has_survived ? secure::SharedSecret::self_seed : secure::SharedSecret::mask_key));
    }
  }
}

TEST_CASE("fewer than the threshold of members can't open another's update, even with the server") {
  // Two of seven side with the server, and the server has both masks of nobody: what they know of
  // member 0 are two shares of each of its secrets.
  Table table(people(7));
  table.deal(first_indices(7));
  const auto& victim = table.all[0];
  const auto of_mask = victim.secrets().mask_sharing(5, table.seats[0].transcript());
  for (std::uint32_t known = 1; known <= 5; ++known) {
    std::vector<secure::Share> shares;
    for (std::uint32_t i = 1; i <= known; ++i) shares.push_back(of_mask.at(i + 1));
    CHECK((secure::combine(shares).value() == victim.secrets().mask()) == (known == 5));
  }
}

// Malicious members ------------------------------------------------------------------------------

namespace {

/// An attempt whose last member is gone after it has shared its secrets.
struct Opening {
  explicit Opening(std::size_t members = 7)
      : table(people(members)),
        unlocking(table.cohort, first_indices(members), first_indices(members - 1)) {
    const Indices left = first_indices(members - 1);
    table.deal(first_indices(members));
    const auto consents = table.consents(left, left);
    for (const std::uint32_t i : left)
      reveals.push_back(table.seats[i].reveal(left, consents).value());
  }

  Table table;
  Unlocking unlocking;
  std::vector<secure::Reveal> reveals;
};

}  // namespace

TEST_CASE("a member that reveals another seed or other shares than it must is refused") {
  Opening opening;
  const auto take = [&](std::uint32_t member, const secure::Reveal& reveal) {
    return error_of(opening.unlocking.take(member, reveal));
  };
  CHECK(says(take(6, opening.reveals[0]), "no survivor"));
  CHECK(says(take(1, opening.reveals[0]), "'site-001' reveals another self seed"));
  auto wrong = opening.reveals[0];
  wrong.shares[5].of = secure::SharedSecret::self_seed;
  CHECK(says(take(0, wrong), "'site-000' reveals other shares"));
  wrong = opening.reveals[0];
  wrong.shares.push_back(wrong.shares.back());
  CHECK(says(take(0, wrong), "other shares"));
  wrong = opening.reveals[0];
  std::swap(wrong.shares[0], wrong.shares[1]);
  CHECK(says(take(0, wrong), "other shares"));
  CHECK(opening.unlocking.missing().size() == 6);
  CHECK(take(0, opening.reveals[0]) == "no error");
  CHECK(take(0, opening.reveals[0]) == "no error");  // Once more.
  wrong = opening.reveals[1];
  wrong.shares.erase(wrong.shares.begin() + 2);  // It could not read one.
  CHECK(take(1, wrong) == "no error");
  CHECK(opening.unlocking.missing().size() == 4);
}

TEST_CASE("shares that are missing leave too few, which one answer more makes up for") {
  Opening opening;
  opening.reveals[1].shares.pop_back();  // About the member that is gone.
  for (std::uint32_t i = 0; i < 5; ++i) opening.unlocking.take(i, opening.reveals[i]).value();
  REQUIRE(opening.unlocking.lacks() == 0);
  CHECK(says(error_of(opening.unlocking.removals()),
             "4 shares of the secrets of 'site-006' are too few: 5 are needed"));
  REQUIRE(opening.unlocking.want_more());
  CHECK(opening.unlocking.missing() == Indices{5});
  opening.unlocking.take(5, opening.reveals[5]).value();
  CHECK(opening.unlocking.removals().has_value());
  CHECK(opening.unlocking.liars().empty());
}

TEST_CASE("one wrong share is found out where there is one more than needed, and named") {
  for (const std::uint32_t liar : {0u, 3u, 5u}) {
    Opening opening;
    // (X25519 ignores some bits of the first and the last byte of a key.)
    opening.reveals[liar].shares.back().value.bytes()[5] ^= std::byte{1};
    for (std::uint32_t i = 0; i < 6; ++i) opening.unlocking.take(i, opening.reveals[i]).value();
    REQUIRE(opening.unlocking.missing().empty());
    CHECK(opening.unlocking.removals().has_value());
    // Of six shares the first five are used, so the last one's lie is not even seen.
    CHECK(opening.unlocking.liars() == (liar < 5 ? Indices{liar} : Indices{}));
  }
  Opening two;
  for (const std::uint32_t liar : {0u, 3u})
    two.reveals[liar].shares.back().value.bytes()[5 + liar] ^= std::byte{1};
  for (std::uint32_t i = 0; i < 6; ++i) two.unlocking.take(i, two.reveals[i]).value();
  const auto failed = two.unlocking.removals();
  CHECK(says(error_of(failed), "6 shares of the secrets of 'site-006' are not right"));
}

TEST_CASE("two wrong shares are found out where there are two more than needed") {
  for (std::uint32_t one = 0; one < 5; ++one) {
    for (std::uint32_t other = one + 1; other < 6; ++other) {
      Opening opening(8);  // Five answers are needed, and seven are left.
      for (const std::uint32_t liar : {one, other})
        opening.reveals[liar].shares.back().value.bytes()[5 + liar] ^= std::byte{1};
      for (std::uint32_t i = 0; i < 7; ++i) opening.unlocking.take(i, opening.reveals[i]).value();
      CHECK(opening.unlocking.removals().has_value());
      // The first five shares that are right are used.
      CHECK(opening.unlocking.liars() == (Indices{one, other}));
    }
  }
}
