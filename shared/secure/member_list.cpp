// SPDX-License-Identifier: Apache-2.0
#include "shared/secure/member_list.hpp"

#include "shared/base/io/text_of_bytes.hpp"
#include "shared/base/printable.hpp"
#include "shared/identity/authority.hpp"
#include "shared/secure/cohort.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

namespace fl::secure {

namespace {

constexpr std::string_view title = "tributary-members";
constexpr std::string_view version = "1";

Error not_a_list(std::string text) { return {Errc::invalid_input, std::move(text)}; }

/// The words of a line without its comment.
std::vector<std::string_view> words_of(std::string_view line) {
  line = line.substr(0, line.find('#'));
  std::vector<std::string_view> words;
  constexpr std::string_view space = " \t\r";
  for (auto at = line.find_first_not_of(space); at != std::string_view::npos;
       at = line.find_first_not_of(space, at)) {
    const auto end = std::min(line.find_first_of(space, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

Result<std::uint32_t> read_count(std::string_view text) {
  std::uint32_t value = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || value == 0 || text.front() == '0')
    return not_a_list(fmt::format("'{}' is not a number above 0", printable(text)));
  return value;
}

Result<MemberList::Named> read_named(const std::vector<std::string_view>& words) {
  FL_CHECK(check_client_name(words[1]));
  FL_TRY(const Public key, parse_key_text(words[2]));
  return MemberList::Named{std::string(words[1]), key};
}

class Reader {
 public:
  Result<void> read(const std::vector<std::string_view>& words) {
    if (!has_title_) {
      has_title_ = words.size() == 2 && words[0] == title && words[1] == version;
      return has_title_
                 ? success()
                 : not_a_list(fmt::format("a member list begins with '{} {}'", title, version));
    }
    const std::string_view word = words[0];
    const bool is_named = word == "signer" || word == "member" || word == "signature";
    if (words.size() != (is_named ? 3U : 2U))
      return not_a_list(fmt::format("'{}' has {} values", printable(word), words.size() - 1));
    if (word == "signer") return add_named(words, list_.signers);
    if (word == "member") return add_named(words, list_.members);
    if (word == "signature") return add_signature(words);
    if (!seen_.insert(std::string(word)).second)
      return not_a_list(fmt::format("'{}' is there twice", printable(word)));
    if (word == "before") {
      Public digest;
      if (!read_hex(words[1], digest)) return not_a_list("the digest is not 64 hexadecimal digits");
      list_.before = digest;
      return {};
    }
    std::uint32_t* const count = word == "epoch"             ? &list_.epoch
                                 : word == "smallest-cohort" ? &list_.smallest_cohort
                                 : word == "needs"           ? &list_.needs
                                                             : nullptr;
    if (count == nullptr) return not_a_list(fmt::format("'{}' is no word of it", printable(word)));
    FL_TRY(*count, read_count(words[1]));
    return {};
  }

  Result<MemberList> finish() {
    if (!has_title_)
      return not_a_list(fmt::format("a member list begins with '{} {}'", title, version));
    for (const char* word : {"epoch", "smallest-cohort", "needs"})
      if (!seen_.contains(word)) return not_a_list(fmt::format("the list lacks '{}'", word));
    if ((list_.epoch == 1) != !list_.before)
      return not_a_list("the list of epoch 1 has no 'before', and every later one has it");
    const std::size_t members = list_.members.size();
    if (members < cohort_min)
      return not_a_list(
          fmt::format("there are {} members, and {} are the fewest", members, cohort_min));
    if (list_.smallest_cohort < cohort_min || list_.smallest_cohort > members) {
      return not_a_list(fmt::format("'smallest-cohort' is {}, and {} to {} are allowed",
                                    list_.smallest_cohort, cohort_min, members));
    }
    if (list_.needs > list_.signers.size()) {
      return not_a_list(fmt::format("'needs' is {}, and there are {} signers", list_.needs,
                                    list_.signers.size()));
    }
    return std::move(list_);
  }

 private:
  Result<void> add_named(const std::vector<std::string_view>& words,
                         std::vector<MemberList::Named>& to) {
    FL_TRY(MemberList::Named named, read_named(words));
    if (!names_.insert(fmt::format("{} {}", words[0], words[1])).second)
      return not_a_list(fmt::format("the {} '{}' is there twice", words[0], named.name));
    if (!keys_.insert(named.key).second)
      return not_a_list(fmt::format("the key of '{}' is there twice", named.name));
    to.push_back(std::move(named));
    return {};
  }

  Result<void> add_signature(const std::vector<std::string_view>& words) {
    MemberList::Signed of{std::string(words[1]), {}};
    if (!read_hex(words[2], of.signature))
      return not_a_list(fmt::format("the signature of '{}' is not {} hexadecimal digits",
                                    printable(words[1]), 2 * signature_bytes));
    list_.signatures.push_back(std::move(of));
    return {};
  }

  MemberList list_;
  bool has_title_ = false;
  std::set<std::string> seen_;
  std::set<std::string> names_;
  std::set<Public> keys_;
};

/// What one signs. The digest alone could be taken for another protocol's.
Public signed_digest(const MemberList& list) {
  return digest_of({bytes_of("tributary member list 1"), list.digest()});
}

}  // namespace

Public MemberList::digest() const {
  const std::string numbers =
      fmt::format("{} {} {} {} {}", epoch, smallest_cohort, needs, signers.size(), members.size());
  Public chain = digest_of(
      {bytes_of(title), bytes_of(version), bytes_of(numbers), before ? Bytes(*before) : Bytes()});
  for (const auto* all : {&signers, &members}) {
    for (const Named& named : *all) chain = digest_of({chain, bytes_of(named.name), named.key});
  }
  return chain;
}

std::optional<Public> MemberList::find(std::string_view name) const {
  const auto found = std::ranges::find(members, name, &Named::name);
  return found == members.end() ? std::nullopt : std::optional(found->key);
}

Result<MemberList> parse_member_list(std::string_view text) {
  if (text.size() > member_list_bytes_max) {
    return not_a_list(fmt::format("a member list has at most {} bytes, not {}",
                                  member_list_bytes_max, text.size()));
  }
  Reader reader;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const auto words = words_of(text.substr(0, end));
    text.remove_prefix(std::min(text.size(), end + 1));
    if (words.empty()) continue;
    const auto read = reader.read(words);
    if (!read) return not_a_list(fmt::format("line {}: {}", number, read.error().message()));
  }
  return reader.finish();
}

Result<std::string> signature_line(const MemberList& list, const Secret& signer) {
  const Public key = signing_key(signer);
  const auto found = std::ranges::find(list.signers, key, &MemberList::Named::key);
  if (found == list.signers.end()) {
    return not_a_list(fmt::format("the key {} is none of the list's signers", key_text(key)));
  }
  if (std::ranges::find(list.signatures, found->name, &MemberList::Signed::name) !=
      list.signatures.end())
    return not_a_list(
        fmt::format("'{}' has signed already: remove that line to sign again", found->name));
  return fmt::format("signature {} {}", found->name, to_hex(sign(signer, signed_digest(list))));
}

Result<void> check_signed(const MemberList& list) {
  const Public digest = signed_digest(list);
  std::set<std::string> signers;
  for (const MemberList::Signed& of : list.signatures) {
    const auto signer = std::ranges::find(list.signers, of.name, &MemberList::Named::name);
    if (signer == list.signers.end())
      return not_a_list(fmt::format("'{}' has signed, and is no signer", printable(of.name)));
    if (!is_signed(signer->key, digest, of.signature)) {
      return not_a_list(
          fmt::format("the signature of '{}' is not of this list, which may have been "
                      "changed since",
                      of.name));
    }
    if (!signers.insert(of.name).second)
      return not_a_list(fmt::format("'{}' has signed twice", of.name));
  }
  if (signers.size() < list.needs) {
    return not_a_list(fmt::format("{} have signed, and {} must", signers.size(), list.needs));
  }
  return {};
}

Result<void> check_follows(const MemberList& next, const MemberList& list) {
  if (next.epoch <= list.epoch) {
    return not_a_list(
        fmt::format("its epoch is {}, and the list before has {}", next.epoch, list.epoch));
  }
  if (next.before != list.digest()) {
    return not_a_list(fmt::format("it does not name the list before, whose digest is {}",
                                  key_text(list.digest())));
  }
  const auto has_old_signature = [&](const MemberList::Named& signer) {
    const auto now = std::ranges::find(next.signers, signer.key, &MemberList::Named::key);
    return now != next.signers.end() &&
           std::ranges::find(next.signatures, now->name, &MemberList::Signed::name) !=
               next.signatures.end();
  };
  const auto agreed =
      static_cast<std::uint32_t>(std::ranges::count_if(list.signers, has_old_signature));
  if (agreed < list.needs) {
    return not_a_list(fmt::format(
        "it is signed by {} of the signers of the list before, and {} must sign: one list may add "
        "signers, and the next one may leave the old ones out",
        agreed, list.needs));
  }
  return {};
}

std::string key_text(const Public& key) { return to_hex(key); }

Result<Public> parse_key_text(std::string_view text) {
  Public key;
  if (!read_hex(text, key))
    return not_a_list(fmt::format("'{}' is not a key of 64 hexadecimal digits", printable(text)));
  return key;
}

std::string fingerprint_of(const Public& key) {
  const std::string digits = to_hex(Bytes(digest_of({bytes_of("tributary fingerprint 1"), key})));
  std::string text;
  for (std::size_t at = 0; at < 20; at += 4)
    text += (text.empty() ? "" : " ") + digits.substr(at, 4);
  return text;
}

}  // namespace fl::secure
