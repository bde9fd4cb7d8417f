// SPDX-License-Identifier: Apache-2.0
#include "client/members_command.hpp"

#include "client/secure/membership.hpp"
#include "shared/base/log.hpp"
#include "shared/flags/flags.hpp"
#include "shared/secure/member_list.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fl::client {

namespace {

using secure::MemberList;

// The lists in the client's folder (client/secure/membership.hpp).
constexpr const char* accepted_members_file = "members.txt";
constexpr const char* proposed_members_file = "members-proposed.txt";

struct MembersOptions {
  std::string action;  // "show" or "approve".
  std::string digest;  // For approve.
};

/// A list of the state folder; nullopt if there is none.
Result<std::optional<MemberList>> read_kept(const std::string& state, const char* name) {
  Files& files = posix_files();
  const auto path = std::filesystem::path(state) / name;
  if (!files.exists(path)) return std::optional<MemberList>();
  FL_TRY(const std::string text, files.read_all(path, secure::member_list_bytes_max));
  auto list = secure::parse_member_list(text);
  if (!list) return list.error().at(path.string());
  return std::optional(std::move(*list));
}

void print_head(const char* what, const MemberList& list) {
  fmt::print("{} list {}\nepoch {}, cohorts of {} members at least, {} of {} signers must sign\n",
             what, secure::key_text(list.digest()), list.epoch, list.smallest_cohort, list.needs,
             list.signers.size());
}

void print_named(std::string_view what, const MemberList::Named& named) {
  fmt::print("{:<15}  {}  {}\n", what, secure::fingerprint_of(named.key), named.name);
}

/// Prints who of one kind, "member" or "signer", comes, goes or gets another key.
void print_changes(std::string_view kind, const std::vector<MemberList::Named>& before,
                   const std::vector<MemberList::Named>& next) {
  const auto find = [](const auto& in, const std::string& name) {
    return std::ranges::find(in, name, &MemberList::Named::name);
  };
  for (const auto& named : next) {
    const auto known = find(before, named.name);
    if (known == before.end())
      print_named(fmt::format("added {}", kind), named);
    else if (known->key != named.key)
      print_named(fmt::format("new key, {}", kind), named);
  }
  for (const auto& named : before)
    if (find(next, named.name) == next.end()) print_named(fmt::format("removed {}", kind), named);
}

Result<void> show_members(const std::string& state) {
  FL_TRY(const auto accepted, read_kept(state, accepted_members_file));
  FL_TRY(const auto proposed, read_kept(state, proposed_members_file));
  if (!accepted && !proposed) {
    return Error(Errc::not_found,
                 fmt::format("{} has no member list: a client with --members keeps there the list "
                             "that it has accepted; --state says which folder is the client's",
                             state));
  }
  if (accepted) {
    print_head("accepted", *accepted);
    for (const auto& member : accepted->members) print_named("member", member);
  }
  if (!proposed) return {};
  if (accepted) fmt::print("\n");
  print_head("proposed", *proposed);
  const MemberList before = accepted.value_or(MemberList());
  print_changes("member", before.members, proposed->members);
  print_changes("signer", before.signers, proposed->signers);
  fmt::print("\nto accept it: fl-client members approve {} --state {}\n",
             secure::key_text(proposed->digest()), state);
  return {};
}

Result<void> approve_proposed(const MembersOptions& options, const std::string& state) {
  if (options.digest.empty()) {
    return Error(Errc::invalid_input,
                 "'members approve' needs DIGEST, that of the proposed list, as 'members show' "
                 "prints it");
  }
  FL_CHECK(approve_members(posix_files(), state, options.digest));
  fmt::print("accepted the list {}\n", options.digest);
  return {};
}

Result<void> run_members(const MembersOptions& options, const std::string& state) {
  FL_CHECK(secure::check_primitives());
  if (options.action == "approve") return approve_proposed(options, state);
  if (options.digest.empty()) return show_members(state);
  return Error(Errc::invalid_input, "DIGEST is for 'members approve'");
}

}  // namespace

std::function<int()> declare_members_command(CLI::App& app, const std::string& state) {
  auto* const command = app.add_subcommand(
      "members",
      "Shows the member list that this site has accepted for masked runs, and the one that is "
      "proposed in its place; or accepts that. They are in the folder of --state");
  const auto options = std::make_shared<MembersOptions>();
  command->add_option("ACTION", options->action, "show or approve")
      ->check(one_of({"show", "approve"}))
      ->required();
  command->add_option("DIGEST", options->digest, "With approve: the digest of the proposed list");
  return [command, options, &state] {
    if (!*command) return -1;
    start_log(false, false);
    const auto done = run_members(*options, state);
    if (!done) log_fatal("fl-client members", done.error().message());
    return done ? 0 : 1;
  };
}

}  // namespace fl::client
