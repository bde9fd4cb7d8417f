// SPDX-License-Identifier: Apache-2.0
// Member lists: who may write which, and what is noticed.
#include "shared/secure/member_list.hpp"
#include "shared/secure/key_file.hpp"
#include "tests/secure/attempt_world.hpp"
#include "tests/secure/says.hpp"
#include "tests/support/temporary_folder.hpp"

#include <sys/stat.h>

using namespace fl;
using namespace fl::testing;
using namespace fl::secure;

namespace {

Secret key_of(const std::string& name) { return secret_from("key of " + name); }
std::string key_line(const std::string& word, const std::string& name) {
  return fmt::format("{} {} {}\n", word, name, key_text(signing_key(key_of(name))));
}

/// A list of two signers and four sites.
std::string some_list(const std::string& head = "epoch 1\nsmallest-cohort 3\nneeds 2\n") {
  std::string text = "# Four hospitals\n\ntributary-members 1\n" + head;
  for (const char* name : {"ada", "bob"}) text += key_line("signer", name);
  for (const char* name : {"north", "south", "east", "west"}) text += key_line("member", name);
  return text;
}

std::string signed_by(std::string text, std::initializer_list<const char*> signers) {
  for (const char* signer : signers) {
    const auto list = parse_member_list(text).value();
    text += signature_line(list, key_of(signer)).value() + "\n";
  }
  return text;
}

std::string list_error(std::string_view text) {
  const auto list = parse_member_list(text);
  if (!list) return list.error().message();
  const auto is_signed = check_signed(*list);
  return is_signed ? "no error" : is_signed.error().message();
}

std::string with(std::string text, std::string_view old, std::string_view now) {
  const auto at = text.find(old);
  REQUIRE(at != std::string::npos);
  return text.replace(at, old.size(), now);
}

}  // namespace

TEST_CASE("a list that enough people have signed is read, and names each site's key") {
  const std::string text = signed_by(some_list(), {"ada", "bob"});
  const auto list = parse_member_list(text).value();
  CHECK(check_signed(list).has_value());
  CHECK(list.epoch == 1);
  CHECK(list.smallest_cohort == 3);
  CHECK(list.members.size() == 4);
  CHECK(list.find("east") == signing_key(key_of("east")));
  CHECK_FALSE(list.find("ada").has_value());
  // Comments, spaces and line ends are for people; a signature does not depend on them.
  const std::string other =
      with(with(text, "# Four hospitals", "\t # 4\r"), "epoch 1\n", "  epoch\t1  # the first\r\n");
  CHECK(list_error(other) == "no error");
  CHECK(parse_member_list(other)->digest() == list.digest());
}

TEST_CASE("signatures count once each, for this list only, and enough of them") {
  const std::string text = some_list();
  CHECK(says(list_error(text), "0 have signed, and 2 must"));
  CHECK(says(list_error(signed_by(text, {"ada"})), "1 have signed, and 2 must"));
  const std::string both = signed_by(text, {"ada", "bob"});
  for (const auto& [old, now] :
       {std::pair("epoch 1\n", "epoch 2\nbefore " + std::string(64, '0') + "\n"),
        {"smallest-cohort 3", "smallest-cohort 4"},
        {"needs 2", "needs 1"},
        {"member north", "member nerth"}}) {
    CHECK(says(list_error(with(both, old, now)), "the signature of 'ada' is not of this list"));
  }
  const std::string line = signed_by(text, {"ada"}).substr(text.size());
  CHECK(says(list_error(text + line + line), "'ada' has signed twice"));
  CHECK(says(list_error(with(both, "signature ada", "signature eve")),
             "'eve' has signed, and is no"));
  CHECK(says(list_error(with(both, "signature ada", "signature bob")),
             "the signature of 'bob' is not of this list"));
  const auto list = parse_member_list(both).value();
  CHECK(says(signature_line(list, key_of("ada")).error().message(), "has signed already"));
  CHECK(
      says(signature_line(list, key_of("north")).error().message(), "none of the list's signers"));
}

TEST_CASE("a list that can't be one is refused with its line") {
  const auto refused = [&](std::string_view old, std::string_view now, std::string_view what) {
    CHECK(says(list_error(with(some_list(), old, now)), what));
  };
  CHECK(says(list_error(""), "begins with 'tributary-members 1'"));
  CHECK(says(list_error("{}"), "line 1: a member list begins with"));
  refused("tributary-members 1", "tributary-members 2", "line 3: a member list begins with");
  refused("epoch 1", "epoch 0", "line 4: '0' is not a number above 0");
  refused("epoch 1", "epoch 01", "'01' is not a number above 0");
  refused("epoch 1", "epoch 4294967296", "is not a number above 0");
  refused("epoch 1", "epoch 1 2", "'epoch' has 2 values");
  refused("epoch 1", "epoch 1\nepoch 1", "line 5: 'epoch' is there twice");
  refused("epoch 1\n", "", "the list lacks 'epoch'");
  refused("epoch 1", "epoch 2", "no 'before', and every later one has it");
  refused("epoch 1", "epoch 1\nbefore " + std::string(64, 'a'), "no 'before', and every later");
  refused("epoch 1", "epoch 1\nbefore aa", "not 64 hexadecimal digits");
  refused("needs 2", "needs 3", "'needs' is 3, and there are 2 signers");
  refused("smallest-cohort 3", "smallest-cohort 2", "'smallest-cohort' is 2, and 3 to 4");
  refused("smallest-cohort 3", "smallest-cohort 5", "'smallest-cohort' is 5, and 3 to 4");
  refused("smallest-cohort 3", "largest-cohort 3", "'largest-cohort' is no word of it");
  refused("member west", "member east", "the member 'east' is there twice");
  refused("member west", "member ../west", "client name");
  refused(key_line("member", "west"), "member west " + key_text(signing_key(key_of("east"))) + "\n",
          "the key of 'west' is there twice");
  refused(key_line("member", "west"), "member west " + std::string(63, 'a') + "\n",
          "is not a key of 64 hexadecimal digits");
  refused(key_line("member", "west"), "member west " + std::string(64, 'g') + "\n",
          "is not a key of 64 hexadecimal digits");
  CHECK(says(list_error(some_list() + "signature ada 00\n"), "is not 128 hexadecimal digits"));
  CHECK(says(list_error("tributary-members 1\nepoch 1\nsmallest-cohort 3\nneeds 1\n" +
                        key_line("signer", "ada") + key_line("member", "north") +
                        key_line("member", "south")),
             "there are 2 members, and 3 are the fewest"));
  CHECK(says(list_error(std::string(member_list_bytes_max + 1, '\n')), "at most 196608 bytes"));
  CHECK(says(list_error(some_list() + "\x1b[2J x\n"), "'?[2J'"));  // No control of a terminal.
}

TEST_CASE("a list may take another's place if it names that one and counts on") {
  const auto first = parse_member_list(some_list()).value();
  const auto text_of = [](const std::string& epoch, const Public& before) {
    return some_list(
        fmt::format("epoch {}\nbefore {}\nsmallest-cohort 3\nneeds 2\n", epoch, key_text(before)));
  };
  const auto next = [&](const std::string& epoch, const Public& before) {
    return parse_member_list(signed_by(text_of(epoch, before), {"ada", "bob"})).value();
  };
  const auto second = next("2", first.digest());
  CHECK(check_follows(second, first).has_value());
  CHECK(check_follows(next("7", first.digest()), first).has_value());
  CHECK(says(check_follows(first, first).error().message(), "its epoch is 1"));
  CHECK(says(check_follows(first, second).error().message(), "its epoch is 1"));
  CHECK(says(check_follows(next("3", first.digest()), second).error().message(),
             "does not name the list before"));
}

TEST_CASE("the signers of a list, and not those of the next one alone, say what follows it") {
  const auto first = parse_member_list(some_list()).value();
  const std::string head =
      fmt::format("epoch 2\nbefore {}\nsmallest-cohort 3\nneeds 2\n", key_text(first.digest()));
  // Both lists need two. The second one has other signers, too.
  const std::string text = some_list(head) + key_line("signer", "eve") + key_line("signer", "fay");
  const auto follows = [&](std::initializer_list<const char*> signers) {
    const auto list = parse_member_list(signed_by(text, signers)).value();
    REQUIRE(check_signed(list).has_value());
    const auto checked = check_follows(list, first);
    return checked ? "no error" : checked.error().message();
  };
  CHECK(says(follows({"eve", "fay"}), "signed by 0 of the signers of the list before, and 2 must"));
  CHECK(says(follows({"ada", "fay"}), "signed by 1 of the signers of the list before, and 2 must"));
  CHECK(follows({"eve", "ada", "bob"}) == "no error");
  // A signer's name is not enough: the key counts.
  const std::string stolen =
      with(text, key_line("signer", "bob"),
           fmt::format("signer bob {}\n", key_text(signing_key(key_of("ida")))));
  const auto list = parse_member_list(signed_by(stolen, {"ada", "ida"})).value();
  CHECK(says(check_follows(list, first).error().message(), "signed by 1 of the signers"));
}

TEST_CASE("a key lies in a file that only its user may read, and is drawn once") {
  const test::TemporaryFolder folder;
  Files& files = posix_files();
  const auto path = folder / "site.key";
  const Secret made = make_key_file(files, path).value();
  CHECK(read_key_file(files, path).value() == made);
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  CHECK(make_key_file(files, path).error().code() == Errc::conflict);
  CHECK(read_key_file(files, path).value() == made);
  CHECK_FALSE(make_key_file(files, folder / "other.key").value() == made);
  CHECK(read_key_file(files, folder / "none").error().code() == Errc::not_found);
  files.write_atomically(path, bytes_of("tributary-key-1 00\n")).value();
  CHECK(read_key_file(files, path).error().code() == Errc::corrupt);
}

TEST_CASE("a fingerprint is short, and another one for another key") {
  const std::string one = fingerprint_of(signing_key(key_of("north")));
  CHECK(one.size() == 24);
  CHECK(one[4] == ' ');
  CHECK(one != fingerprint_of(signing_key(key_of("south"))));
}
