// SPDX-License-Identifier: Apache-2.0
// Attempts with honest members, of which some are gone at each stage: either the sum of those that
// are left comes out exactly, or none does.
#include "shared/base/io/text_of_bytes.hpp"
#include "tests/secure/attempt_world.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/some_of.hpp"

#include <doctest/doctest.h>

#include <array>
#include <fstream>

using namespace fl;
using namespace fl::testing;

namespace {

/// When a member is gone. Those that never are come last.
enum class Gone { before_keys, before_shares, before_upload, before_consent, before_reveal, never };
constexpr int stages = 6;

Indices those(const std::vector<Gone>& gone, Gone from) {
  Indices out;
  for (std::uint32_t i = 0; i < gone.size(); ++i) {
    if (gone[i] >= from) out.push_back(i);
  }
  return out;
}

Words words_of(std::uint64_t seed, std::size_t count = 37) {
  std::mt19937_64 random(seed);
  Words words(count);
  for (auto& word : words) word = random() >> 8;
  return words;
}

/// The sum that an attempt comes to; nullopt if it has to be made again.
std::optional<Words> run_attempt(const std::vector<Gone>& gone, std::uint64_t seed) {
  std::vector<Person> here;
  std::vector<Gone> stage;
  for (std::size_t i = 0; i < gone.size(); ++i) {
    if (gone[i] == Gone::before_keys) continue;
    here.emplace_back(fmt::format("site-{:03}", i), seed);
    stage.push_back(gone[i]);
  }
  if (here.size() < secure::cohort_min) return std::nullopt;
  Table table(here);
  const Indices sharers = those(stage, Gone::before_upload);
  const Indices survivors = those(stage, Gone::before_consent);
  if (!secure::check_survivors(table.cohort, sharers, survivors)) return std::nullopt;
  table.deal(sharers);
  Words sum(words_of(0).size());
  for (const std::uint32_t i : survivors)
    add_to(sum, masked(table.seats[i], words_of(seed * 1000 + i)));
  const auto consents = table.consents(those(stage, Gone::before_reveal), survivors);
  if (consents.size() < secure::consent_threshold(table.cohort.members.size())) return std::nullopt;
  Unlocking unlocking(table.cohort, sharers, survivors);
  for (const std::uint32_t i : those(stage, Gone::never))
    unlocking.take(i, table.seats[i].reveal(survivors, consents).value()).value();
  if (!unlocking.missing().empty()) return std::nullopt;
  const Words opened = unmasked(sum, unlocking.removals().value());
  CHECK(unlocking.liars().empty());
  Words expected(sum.size());
  for (const std::uint32_t i : survivors) add_to(expected, words_of(seed * 1000 + i));
  CHECK(opened == expected);
  return opened;
}

/// Whether so many members may be gone at each stage, by the rules as people are told them.
bool should_succeed(const std::vector<Gone>& gone) {
  const auto left = [&](Gone from) { return those(gone, from).size(); };
  const std::size_t n = left(Gone::before_shares);
  const std::size_t survivors = left(Gone::before_consent);
  if (n < 3 || survivors < 3) return false;
  const std::size_t holders = 2 * (n - 1) / 3 + 1;
  const std::size_t signers = 2 * n / 3 + 1;
  if (survivors < holders || survivors < signers || left(Gone::before_reveal) < signers)
    return false;
  const std::size_t reveal = left(Gone::never);
  return reveal >= holders || reveal == survivors;
}

}  // namespace

TEST_CASE("of three and four members each may be gone at each stage") {
  for (const std::size_t members : {3u, 4u}) {
    std::vector<int> cases(members == 3 ? 216 : 1296);
    for (std::size_t i = 0; i < cases.size(); ++i) cases[i] = static_cast<int>(i);
    for (const int number : test::some_of(test::some_of(cases))) {
      if (number % test::or_sanitized(1, 7) != 0) continue;
      CAPTURE(number);
      std::vector<Gone> gone;
      for (int rest = number; gone.size() < members; rest /= stages)
        gone.push_back(static_cast<Gone>(rest % stages));
      const auto sum = run_attempt(gone, static_cast<std::uint64_t>(number) + 1);
      CHECK(sum.has_value() == should_succeed(gone));
    }
  }
}

TEST_CASE("of many members some are gone, by chance") {
  std::vector<std::uint64_t> seeds(test::or_sanitized(1000, 60));
  for (std::size_t i = 0; i < seeds.size(); ++i) seeds[i] = i + 1;
  for (const std::uint64_t seed : test::some_of(test::some_of(test::some_of(seeds)))) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    std::vector<Gone> gone(3 + random() % 10);
    for (Gone& of : gone)
      of = random() % 4 == 0 ? static_cast<Gone>(random() % stages) : Gone::never;
    const auto sum = run_attempt(gone, seed);
    CHECK(sum.has_value() == should_succeed(gone));
  }
}

TEST_CASE("a cohort of the largest size opens, with a tenth of it gone") {
  std::vector<Gone> gone(test::or_sanitized<std::size_t>(secure::cohort_max, 24), Gone::never);
  for (std::size_t i = 0; i < gone.size(); i += 10) gone[i] = Gone::before_upload;
  for (std::size_t i = 5; i < gone.size(); i += 20) gone[i] = Gone::before_consent;
  CHECK(run_attempt(gone, 1).has_value());
}

TEST_CASE("the same seed comes to the same keys, shares and masks after a restart") {
  const Table before(people(4));
  Table after(people(4));
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(before.cohort.members[i].keys == after.cohort.members[i].keys);
    for (std::size_t j = 0; j < 3; ++j)
      CHECK(before.sealed[i][j].bytes == after.sealed[i][j].bytes);
  }
  const Table other(people(4, 2));
  CHECK_FALSE(other.cohort.members[0].keys == before.cohort.members[0].keys);
  // Another context, another transcript: the keys are new as well, as they are signed for it.
  const Table elsewhere(people(4), secure::digest_of({bytes_of("another version")}));
  CHECK(elsewhere.seats[0].transcript() != before.seats[0].transcript());
}

TEST_CASE("words go under the masks piece by piece") {
  Table table(people(3));
  table.deal(first_indices(3));
  const Words words = words_of(5, 40'000);
  const Words whole = masked(table.seats[1], words);
  auto masks = table.seats[1].masks().value();
  Words pieces = words;
  for (std::size_t at = 0; at < pieces.size(); at += 4999)
    masks.apply(at, std::span(pieces).subspan(at, std::min<std::size_t>(4999, pieces.size() - at)));
  CHECK(pieces == whole);
  CHECK(whole != words);
}

TEST_CASE("what one sees of two updates with other values is distributed alike") {
  // With the same sum, and over fresh keys: the words of the first member. Chi-square of the
  // highest 4 bits of each.
  std::vector<std::size_t> counts[2] = {std::vector<std::size_t>(16), std::vector<std::size_t>(16)};
  for (std::uint64_t attempt = 1; attempt <= 12; ++attempt) {
    for (const std::size_t which : {0u, 1u}) {
      Table table(people(3, 2 * attempt + which));
      table.deal(first_indices(3));
      for (const std::uint64_t word : masked(table.seats[0], Words(2000, which * 0x7777)))
        ++counts[which][word >> 60];
    }
  }
  double chi_square = 0;
  for (std::size_t bin = 0; bin < 16; ++bin) {
    const auto one = static_cast<double>(counts[0][bin]);
    const auto other = static_cast<double>(counts[1][bin]);
    chi_square += (one - other) * (one - other) / (one + other);
  }
  CHECK(chi_square < 44);  // 15 degrees of freedom: exceeded once in 10,000 times.
}

TEST_CASE("an attempt is that of the second implementation") {
  std::map<std::string, std::string> golden;
  std::ifstream file(FL_SECURE_GOLDEN);
  for (std::string line; std::getline(file, line);) {
    const std::size_t space = line.rfind(' ');
    golden[line.substr(0, space)] = line.substr(space + 1);
  }
  REQUIRE(golden.size() == 33);
  const auto hex = [](Bytes bytes) { return to_hex(bytes); };
  std::vector<Person> all;
  for (const char* name : {"alpha", "beta", "gamma", "mu"}) {
    Person person(name);
    person.site = Secret(secure::digest_of({bytes_of("site"), bytes_of(person.name)}));
    person.seed = Secret(secure::digest_of({bytes_of("seed"), bytes_of(person.name)}));
    all.push_back(std::move(person));
  }
  const Public context = secure::digest_of({bytes_of("the context of the golden attempt")});
  Table table(all, context);
  CHECK(hex(context) == golden["context"]);
  CHECK(hex(table.seats[0].transcript()) == golden["transcript"]);
  for (std::size_t i = 0; i < 4; ++i) {
    const secure::Member& member = table.cohort.members[i];
    CHECK(hex(member.site_key) == golden["site_key " + member.name]);
    CHECK(hex(member.keys.mask_key) + hex(member.keys.share_key) + hex(member.keys.self_digest) ==
          golden["keys " + member.name]);
    CHECK(hex(member.keys.signature) == golden["keys_signature " + member.name]);
    for (const auto& sealed : table.sealed[i]) {
      const std::string& to = table.cohort.members[sealed.to].name;
      CHECK(hex(sealed.bytes) == golden["sealed " + member.name + " " + to]);
    }
  }
  const Indices sharers = first_indices(4);
  const Indices survivors = first_indices(3);
  table.deal(sharers);
  Words sum(5);
  for (const std::uint32_t i : survivors) {
    Words plain;
    for (std::uint64_t w = 0; w < 5; ++w)
      plain.push_back(1000 * (static_cast<std::uint64_t>(all[i].name[0]) - 96) + 7 * w);
    const Words words = masked(table.seats[i], plain);
    CHECK(hex(std::as_bytes(std::span(words))) == golden["masked " + all[i].name]);
    add_to(sum, words);
    CHECK(hex(table.seats[i].consent(survivors, all[i].site)->signature) ==
          golden["consent " + all[i].name]);
  }
  const auto consents = table.consents(survivors, survivors);
  Unlocking unlocking(table.cohort, sharers, survivors);
  for (const std::uint32_t i : survivors)
    unlocking.take(i, table.seats[i].reveal(survivors, consents).value()).value();
  const Words opened = unmasked(sum, unlocking.removals().value());
  CHECK(hex(std::as_bytes(std::span(opened))) == golden["sum"]);
}
