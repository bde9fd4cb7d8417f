// SPDX-License-Identifier: Apache-2.0
#include "client/secure/membership.hpp"

#include "shared/base/io/text_of_bytes.hpp"
#include "shared/base/log.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

namespace fl::client {

namespace {

using secure::MemberList;
using secure::Public;

constexpr std::size_t names_shown_max = 20;  // A message that lists names has no more.

std::filesystem::path accepted_path(const std::filesystem::path& folder) {
  return folder / "members.txt";
}
std::filesystem::path proposed_path(const std::filesystem::path& folder) {
  return folder / "members-proposed.txt";
}

Error not_trusted(std::string text) { return {Errc::invalid_input, std::move(text)}; }

/// A list that this site has written. None, if there is no such file.
Result<std::optional<MemberList>> read_list(Files& files, const std::filesystem::path& path) {
  if (!files.exists(path)) return std::optional<MemberList>();
  FL_TRY(const std::string text, files.read_all(path, secure::member_list_bytes_max));
  auto list = secure::parse_member_list(text);
  if (list) return std::optional(std::move(*list));
  return Error(
      Errc::corrupt,
      fmt::format("{}: {}; restore it from a backup, or remove it and start with --members "
                  "and the right list",
                  path.string(), list.error().message()));
}

/// What changed from one list of names to the next: "added A, B; removed C; other keys for D".
/// `what`: whose names they are, as in "signers ", or "".
std::vector<std::string> changes_of(std::string_view what,
                                    const std::vector<MemberList::Named>& before,
                                    const std::vector<MemberList::Named>& after) {
  std::vector<std::string> added;
  std::vector<std::string> removed;
  std::vector<std::string> rekeyed;
  for (const auto& [name, key] : after) {
    const auto old = std::ranges::find(before, name, &MemberList::Named::name);
    if (old == before.end()) {
      added.push_back(name);
    } else if (old->key != key) {
      rekeyed.push_back(name);
    }
  }
  for (const auto& [name, key] : before) {
    if (std::ranges::find(after, name, &MemberList::Named::name) == after.end())
      removed.push_back(name);
  }
  std::vector<std::string> texts;
  for (const auto& [how, names] :
       {std::pair("added", &added), {"removed", &removed}, {"other keys for", &rekeyed}})
    if (!names->empty())
      texts.push_back(fmt::format("{} {}{}", how, what, first_names(*names, names_shown_max)));
  return texts;
}

std::string changes_text(const MemberList& before, const MemberList& after) {
  std::vector<std::string> texts = changes_of("", before.members, after.members);
  for (std::string& text : changes_of("signers ", before.signers, after.signers))
    texts.push_back(std::move(text));
  for (const auto& [name, old, now] :
       {std::tuple("needs", before.needs, after.needs),
        {"smallest-cohort", before.smallest_cohort, after.smallest_cohort}})
    if (old != now) texts.push_back(fmt::format("{} was {} and is {}", name, old, now));
  return texts.empty() ? "the same members" : fmt::format("{}", fmt::join(texts, "; "));
}

}  // namespace

Result<std::shared_ptr<const MemberList>> Membership::accept(const std::string& text,
                                                             std::string_view own_name) {
  auto list = secure::parse_member_list(text);
  if (!list) return list.error().at("the server's member list");
  if (const auto is_signed = secure::check_signed(*list); !is_signed)
    return is_signed.error().at("the server's member list");
  FL_TRY(const auto accepted, read_list(files_, accepted_path(folder_)));
  const bool is_known = accepted && accepted->digest() == list->digest();
  if (!is_known) FL_CHECK(accepted ? check_next(text, *list, *accepted) : check_first(*list));
  FL_CHECK(check_own(*list, own_name));
  if (!is_known) {
    FL_CHECK(files_.write_atomically(accepted_path(folder_), bytes_of(std::string_view(text))));
    log_info("accepted the member list of epoch {} with {} members, digest {}", list->epoch,
             list->members.size(), to_hex(list->digest()));
  }
  return std::make_shared<const MemberList>(std::move(*list));
}

/// Whether a list may be the first that this site accepts.
Result<void> Membership::check_first(const MemberList& list) const {
  if (const auto* const trusted = std::get_if<MemberList>(&options_.trusted)) {
    if (trusted->digest() == list.digest()) return {};
    return not_trusted(fmt::format(
        "the server has another member list than --members: epoch {}, digest {}, and not epoch {}, "
        "digest {}; ask the list's signers which one is right, and start with --members and that "
        "one",
        list.epoch, to_hex(list.digest()), trusted->epoch, to_hex(trusted->digest())));
  }
  const Public& key = std::get<Public>(options_.trusted);
  const auto signer = std::ranges::find(list.signers, key, &MemberList::Named::key);
  const bool has_signed = signer != list.signers.end() &&
                          std::ranges::find(list.signatures, signer->name,
                                            &MemberList::Signed::name) != list.signatures.end();
  // check_signed() has checked all signatures.
  if (has_signed) return {};
  return not_trusted(fmt::format(
      "the server's member list (epoch {}, digest {}) is not signed by the key that --members "
      "trusts, {}: ask that signer for its signature, or start with --members and the list's file",
      list.epoch, to_hex(list.digest()), secure::key_text(key)));
}

/// Whether a list may take the accepted one's place. If a person must say so, writes it down.
Result<void> Membership::check_next(const std::string& text, const MemberList& list,
                                    const MemberList& accepted) {
  if (const auto follows = secure::check_follows(list, accepted); !follows) {
    return not_trusted(fmt::format(
        "the server's member list (epoch {}, digest {}) can't follow the one that this client has "
        "accepted: {}; if another list is right, remove {} and start with --members and that list",
        list.epoch, to_hex(list.digest()), follows.error().message(),
        accepted_path(folder_).string()));
  }
  const auto* const trusted = std::get_if<MemberList>(&options_.trusted);
  if (trusted != nullptr && trusted->digest() == list.digest()) return {};
  FL_CHECK(files_.write_atomically(proposed_path(folder_), bytes_of(std::string_view(text))));
  const std::string digest = to_hex(list.digest());
  return not_trusted(fmt::format(
      "the server has a changed member list: epoch {}, digest {} ({}); look at {} and allow it "
      "with: fl-client members approve {} --state {}",
      list.epoch, digest, changes_text(accepted, list), proposed_path(folder_).string(), digest,
      folder_.string()));
}

Result<void> Membership::check_own(const MemberList& list, std::string_view own_name) const {
  const Public own = secure::signing_key(options_.site_key);
  const auto listed = list.find(own_name);
  if (listed == own) return {};
  const std::string line = fmt::format("member {} {}", own_name, secure::key_text(own));
  if (!listed) {
    return not_trusted(fmt::format(
        "the member list of epoch {} lacks this site, '{}': ask its signers for a list with the "
        "line '{}', or join the server again under the name that the list has for this site",
        list.epoch, own_name, line));
  }
  return not_trusted(fmt::format(
      "the member list of epoch {} has another site key for '{}' than this client: {}, and not {}; "
      "start with the site key that the list has, or ask its signers for a list with the line '{}'",
      list.epoch, own_name, secure::key_text(*listed), secure::key_text(own), line));
}

Result<void> approve_members(Files& files, const std::filesystem::path& folder,
                             const std::string& digest_hex) {
  const auto from = proposed_path(folder);
  FL_TRY(const auto proposed, read_list(files, from));
  if (!proposed) {
    return Error(Errc::not_found,
                 fmt::format("no member list waits in {}: a client puts one there when its server "
                             "has a list that follows the accepted one",
                             folder.string()));
  }
  Public digest;
  if (!read_hex(digest_hex, digest))
    return not_trusted(fmt::format("'{}' is not a digest of 64 hexadecimal digits", digest_hex));
  if (digest != proposed->digest()) {
    return not_trusted(
        fmt::format("the list in {} has another digest, {}: look at it before you "
                    "allow it",
                    from.string(), to_hex(proposed->digest())));
  }
  FL_CHECK(secure::check_signed(*proposed));
  FL_TRY(const auto accepted, read_list(files, accepted_path(folder)));
  if (accepted) FL_CHECK(secure::check_follows(*proposed, *accepted));
  FL_CHECK(files.rename(from, accepted_path(folder)));
  return files.sync_folder(folder);
}

Result<void> forget_members(Files& files, const std::filesystem::path& folder) {
  for (const auto& path : {accepted_path(folder), proposed_path(folder)}) {
    if (files.exists(path)) FL_CHECK(files.remove(path));
  }
  return {};
}

}  // namespace fl::client
