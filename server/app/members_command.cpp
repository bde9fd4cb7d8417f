// SPDX-License-Identifier: Apache-2.0
#include "server/app/members_command.hpp"

#include "server/app/member_file.hpp"
#include "shared/base/io/file.hpp"
#include "shared/flags/flags.hpp"
#include "shared/secure/key_file.hpp"
#include "shared/secure/member_list.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

namespace fl::server {

namespace {

using secure::MemberList;

struct MembersOptions : SharedOptions {
  std::string action;  // "sign" or "check".
  std::string list;
  std::string key;     // For sign.
  std::string before;  // For check; "": not given.
};

void declare_members(CLI::App& command, MembersOptions& options) {
  command.add_option("ACTION", options.action, "sign or check")
      ->check(one_of({"sign", "check"}))
      ->required();
  command.add_option("LIST", options.list, "The file of the list")
      ->type_name("FILE")
      ->check(not_empty())
      ->required();
  command
      .add_option("--key", options.key,
                  "With sign: the key of one of the list's signers, made by 'fl-client site-key'")
      ->type_name("FILE")
      ->check(not_empty());
  command
      .add_option("--before", options.before,
                  "With check: the list that this one takes the place of, which it must name")
      ->type_name("FILE")
      ->check(not_empty());
}

/// Puts a line at the end of the list, all of it or nothing.
Result<void> sign_list(const MembersOptions& options) {
  if (options.key.empty())
    return Error(Errc::invalid_input, "'members sign' needs --key, the file of a signer's key");
  FL_TRY(MemberFile file, read_member_file(posix_files(), options.list));
  auto& [text, list] = file;
  FL_TRY(const secure::Secret key, secure::read_key_file(posix_files(), options.key));
  const auto line = secure::signature_line(list, key);
  if (!line) return line.error().at(options.list);
  if (!text.ends_with('\n')) text += '\n';
  text += *line + '\n';
  std::error_code none;
  const auto mode = std::filesystem::status(options.list, none).permissions();
  FL_CHECK(posix_files().write_atomically(options.list, bytes_of(text)));
  std::filesystem::permissions(options.list, mode, none);  // A list is for all to read.
  fmt::print("signed the list {}\n", secure::key_text(list.digest()));
  return {};
}

void print_list(const MemberList& list) {
  fmt::print("list {}\nepoch {}, cohorts of {} members at least\n", secure::key_text(list.digest()),
             list.epoch, list.smallest_cohort);
  std::size_t width = 0;
  for (const auto* all : {&list.signers, &list.members})
    for (const auto& of : *all) width = std::max(width, of.name.size());
  for (const auto& signer : list.signers) {
    const bool has_signed = std::ranges::find(list.signatures, signer.name,
                                              &MemberList::Signed::name) != list.signatures.end();
    fmt::print("signer  {:<{}}  {}  {}\n", signer.name, width, secure::fingerprint_of(signer.key),
               has_signed ? "signed" : "not signed");
  }
  for (const auto& member : list.members)
    fmt::print("member  {:<{}}  {}\n", member.name, width, secure::fingerprint_of(member.key));
}

Result<void> check_list(const MembersOptions& options) {
  FL_TRY(const MemberFile file, read_member_file(posix_files(), options.list));
  const MemberList& list = file.list;
  const auto is_signed = secure::check_signed(list);
  if (!is_signed) return is_signed.error().at(options.list);
  if (!options.before.empty()) {
    FL_TRY(const MemberFile before, read_member_file(posix_files(), options.before));
    const auto follows = secure::check_follows(list, before.list);
    if (!follows) return follows.error().at(options.list);
  }
  print_list(list);
  if (const std::string warning = lone_signer_warning(list); !warning.empty())
    fmt::print(stderr, "warning: {}\n", warning);
  return {};
}

Result<void> run_members(const MembersOptions& options) {
  FL_CHECK(secure::check_primitives());
  if (options.action == "sign" && !options.before.empty())
    return Error(Errc::invalid_input, "--before is for 'members check'");
  if (options.action == "check" && !options.key.empty())
    return Error(Errc::invalid_input, "--key is for 'members sign'");
  return options.action == "sign" ? sign_list(options) : check_list(options);
}

}  // namespace

Command members_command() {
  return make_command<MembersOptions>(
      "members",
      "Signs the list of a consortium's members and their site keys, or checks it. Does it where "
      "the list's signers are, not where the server is",
      {.declare = declare_members, .run = run_members});
}

}  // namespace fl::server
