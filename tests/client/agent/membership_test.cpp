// SPDX-License-Identifier: Apache-2.0
// Which member list a site goes by, and what it keeps on its disk of masked rounds.
#include "client/secure/membership.hpp"

#include "client/secure/attempt_record.hpp"
#include "tests/client/agent/masking_world.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace fl::test {

namespace {

/// A site's disk, and what it says to a server's list.
struct Site {
  MemFiles files;
  Site() { REQUIRE(files.make_folder(site_folder)); }

  /// Empty, if the list is accepted.
  std::string answer_to(const std::string& text, const SecureOptions& options,
                        const char* name = "north") {
    const auto accepted = Membership(files, site_folder, options).accept(text, name);
    if (accepted) {
      CHECK((*accepted)->digest() == digest_in(text));
      return "";
    }
    CHECK(accepted.error().code() == Errc::invalid_input);
    return accepted.error().message();
  }
};

}  // namespace

TEST_CASE("the first member list is the one that --members names, and is kept") {
  Site site;
  const auto options = trusting(first_list());
  CHECK(
      has_words(site.answer_to(second_list(), options), "has another member list than --members"));
  CHECK(!site.files.exists(site_folder / "members.txt"));
  CHECK(site.answer_to(first_list(), options).empty());
  CHECK(site.files.read_all(site_folder / "members.txt").value() == first_list());
  CHECK(site.answer_to(first_list(), trusting_signer("nobody")).empty());
}

TEST_CASE("a signer's key stands for any first list that it has signed") {
  Site site;
  CHECK(has_words(site.answer_to(first_list(), trusting_signer("bob")),
                  "is not signed by the key that --members trusts"));
  CHECK(site.answer_to(first_list(), trusting_signer("ada")).empty());
}

TEST_CASE("a list without its signatures, or one that is none, is refused") {
  Site site;
  const std::string text = first_list();
  const std::string bare = text.substr(0, text.find("signature "));
  CHECK(has_words(site.answer_to(bare, trusting(text)), "0 have signed, and 1 must"));
  CHECK(has_words(site.answer_to("epoch 1\n", trusting(text)), "the server's member list: line 1"));
}

TEST_CASE("a site is in the list under its own name, with its own key") {
  Site site;
  const auto options = trusting(first_list());
  const std::string missing = site.answer_to(first_list(), options, "south");
  CHECK(has_words(missing, "lacks this site, 'south'"));
  CHECK(has_words(missing, "member south"));
  CHECK(
      has_words(site.answer_to(first_list(), options, "east"), "has another site key for 'east'"));
  CHECK(!site.files.exists(site_folder / "members.txt"));
}

TEST_CASE("a changed list waits for a person who approves its digest") {
  Site site;
  const auto options = trusting(first_list());
  CHECK(has_words(approve_members(site.files, site_folder, "00").error().message(),
                  "no member list waits"));
  REQUIRE(site.answer_to(first_list(), options).empty());
  const std::string digest = to_hex(digest_in(second_list()));
  const std::string told = site.answer_to(second_list(), options);
  CHECK(has_words(told, "the server has a changed member list: epoch 2, digest " + digest));
  CHECK(has_words(told, "(added south)"));
  CHECK(has_words(told, "fl-client members approve " + digest + " --state /site"));
  CHECK(site.files.read_all(site_folder / "members-proposed.txt").value() == second_list());
  CHECK(site.answer_to(first_list(), options).empty());

  const auto wrong = approve_members(site.files, site_folder, to_hex(digest_in(first_list())));
  REQUIRE(!wrong);
  CHECK(has_words(wrong.error().message(), "has another digest, " + digest));
  CHECK(has_words(approve_members(site.files, site_folder, "12").error().message(),
                  "is not a digest"));
  REQUIRE(approve_members(site.files, site_folder, digest));
  CHECK(!site.files.exists(site_folder / "members-proposed.txt"));
  site.files.crash(1);
  CHECK(site.answer_to(second_list(), options).empty());
  CHECK(has_words(site.answer_to(first_list(), options),
                  "can't follow the one that this client has accepted: its epoch is 1"));
}

TEST_CASE("a changed list that --members names needs no other approval") {
  Site site;
  REQUIRE(site.answer_to(first_list(), trusting(first_list())).empty());
  CHECK(site.answer_to(second_list(), trusting(second_list())).empty());
  CHECK(site.files.read_all(site_folder / "members.txt").value() == second_list());
}

TEST_CASE("a list that is approved says whose keys and which signers are new") {
  Site site;
  const auto options = trusting(first_list());
  REQUIRE(site.answer_to(first_list(), options).empty());
  const std::string other =
      list_text({"north", "west", "south"}, {"ada", "eve"},
                fmt::format("needs 1\nepoch 2\nbefore {}\n", to_hex(digest_in(first_list()))));
  CHECK(
      has_words(site.answer_to(other, options), "(added south; removed east; added signers eve)"));
}

TEST_CASE("no list follows that the accepted one's signers have not signed") {
  Site site;
  const auto options = trusting(first_list());
  REQUIRE(site.answer_to(first_list(), options).empty());
  const std::string other =
      list_text({"north", "west", "south"}, {"eve"},
                fmt::format("needs 1\nepoch 2\nbefore {}\n", to_hex(digest_in(first_list()))));
  CHECK(has_words(site.answer_to(other, options), "signed by 0 of the signers of the list before"));
  CHECK(!site.files.exists(site_folder / "members-proposed.txt"));
}

// The records on the disk ------------------------------------------------------------------------

TEST_CASE("an attempt is read again as it was written") {
  MemFiles files;
  REQUIRE(files.make_folder(site_folder));
  AttemptRecord record;
  record.seed = secret_of("seed");
  record.weights = public_of("weights");
  record.terms = public_of("terms");
  record.offer.set_task(7);
  record.offer.set_codec("lanes:8");
  record.offer.mutable_secure()->set_attempt(2);
  record.loss = 0.1;
  AttemptFile file(files, site_folder);
  REQUIRE(file.load());
  CHECK(!file.record());
  REQUIRE(file.write(record));
  record.cohort.emplace().add_members()->set_name("east");
  record.inbox.emplace().add_sealed(std::string("\0\xff", 2));
  record.survivors.emplace().add_survivors(3);
  record.ask.emplace().add_consents()->set_member(4);
  REQUIRE(file.write(record));
  files.crash(1);

  AttemptFile again(files, site_folder);
  REQUIRE(again.load());
  REQUIRE(again.record());
  CHECK(again.record()->seed == record.seed);
  CHECK(again.record()->weights == record.weights);
  CHECK(again.record()->terms == record.terms);
  CHECK(again.record()->task() == 7);
  CHECK(again.record()->attempt() == 2);
  CHECK(again.record()->loss == 0.1);
  CHECK(again.record()->cohort->members(0).name() == "east");
  CHECK(again.record()->inbox->sealed(0) == std::string("\0\xff", 2));
  CHECK(again.record()->survivors->survivors(0) == 3);
  CHECK(again.record()->ask->consents(0).member() == 4);

  REQUIRE(again.remove());
  CHECK(!files.exists(site_folder / "attempt.json"));
  REQUIRE(again.remove());
}

TEST_CASE("an attempt that can't be read is an error that names the file") {
  MemFiles files;
  REQUIRE(files.make_folder(site_folder));
  AttemptFile file(files, site_folder);
  AttemptRecord record;
  record.offer.set_task(7);
  record.inbox.emplace();  // Without a cohort.
  REQUIRE(file.write(record));
  const auto fails_with = [&](std::string_view what) {
    const auto loaded = AttemptFile(files, site_folder).load();
    REQUIRE(!loaded);
    CHECK(loaded.error().code() == Errc::corrupt);
    CHECK(loaded.error().message().starts_with("/site/attempt.json: "));
    CHECK(has_words(loaded.error().message(), what));
  };
  fails_with("it lacks a message");
  for (const auto& [text, what] : {std::pair("[]", "it is not a JSON object"),
                                   {"{}", "seed"},
                                   {R"({"seed": "12"})", "'seed'"}}) {
    REQUIRE(files.write_atomically(site_folder / "attempt.json", bytes_of(std::string_view(text))));
    fails_with(what);
  }
}

TEST_CASE("a site contributes to a version once, over all runs and restarts") {
  MemFiles files;
  REQUIRE(files.make_folder(site_folder));
  const Contribution first{public_of("version"), public_of("transcript"), "0123456789abcdef", 7};
  {
    Contributions all(files, site_folder);
    REQUIRE(all.load());
    CHECK(all.check(first.weights));
    REQUIRE(all.add(first));
    REQUIRE(all.add(first));
  }
  files.crash(1);
  const auto path = site_folder / "contributions";
  const std::string line = files.read_all(path).value();
  CHECK(std::ranges::count(line, '\n') == 1);

  // A write that was cut off leaves a part of a line, which the next one replaces.
  const auto file = files.open(path, OpenMode::update).value();
  REQUIRE(file->write_at(line.size(), bytes_of(std::string_view(line).substr(0, 80))));
  Contributions all(files, site_folder);
  REQUIRE(all.load());
  CHECK(all.check(public_of("another version")));
  const auto twice = all.check(first.weights);
  REQUIRE(!twice);
  CHECK(twice.error().code() == Errc::invalid_input);
  CHECK(has_words(twice.error().message(), "has contributed to this version already"));
  REQUIRE(all.add({public_of("another version"), public_of("another"), "0123456789abcdef", 8}));
  const std::string lines = files.read_all(path).value();
  CHECK(lines.starts_with(line));
  CHECK(std::ranges::count(lines, '\n') == 2);

  REQUIRE(files.open(path, OpenMode::update).value()->write_at(3, bytes_of("!")));
  const auto damaged = Contributions(files, site_folder).load();
  REQUIRE(!damaged);
  CHECK(damaged.error().code() == Errc::corrupt);
  CHECK(has_words(damaged.error().message(), "/site/contributions: line 1"));
}

}  // namespace fl::test
