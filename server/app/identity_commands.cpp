// SPDX-License-Identifier: Apache-2.0
#include "server/app/identity_commands.hpp"

#include "server/app/command_audit.hpp"
#include "server/app/control.hpp"
#include "server/app/invitations.hpp"
#include "server/app/open_store.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/io/file.hpp"
#include "shared/base/io/secret_file.hpp"
#include "shared/base/state_lock.hpp"
#include "shared/flags/flags.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>

namespace fl::server {

namespace {

struct EnrollOptions : SharedOptions {
  std::string name;
  double expires_s = 3600;
  std::string role;  // "": the role that the name has, or trainer.
  std::optional<std::uint64_t> examples_max;
  std::string output;  // "": standard output.
};

struct MemberOptions : SharedOptions {
  std::string name;
};

struct RotateOptions : SharedOptions {
  bool finish = false;
  bool intermediate = false;
};

void declare_enroll(CLI::App& command, EnrollOptions& options) {
  command.add_option("--name", options.name, "The client's name")->required();
  command
      .add_option(
          "--role", options.role,
          "trainer, or evaluator for a client that runs with --evaluate-only. By default the "
          "role that the name has already, or trainer")
      ->check(one_of({"trainer", "evaluator"}));
  command
      .add_option("--max-examples", options.examples_max,
                  "The most examples that the client may say it has; 0: no limit")
      ->check(whole_number(0, std::numeric_limits<std::int64_t>::max()));
  command.add_option("--expires", options.expires_s, "Seconds until the token expires")
      ->check(real_number())
      ->capture_default_str();
  command
      .add_option("--output", options.output,
                  "Write the token into this new file, which only you may read (default: print "
                  "it)")
      ->check(not_empty());
}

Result<void> enroll_client(const EnrollOptions& options) {
  if (!(options.expires_s > 0))
    return Error(Errc::invalid_input, "--expires: it must be above 0 seconds");
  if (!options.output.empty()) FL_CHECK(expect_no_file(options.output));
  FL_TRY(const auto store, open_store(options.state, false));
  const Invitation invitation{options.name, options.expires_s, options.role, options.examples_max};
  FL_TRY(const Invited invited, invite(store->members(), options, invitation));
  if (invited.replaces)
    fmt::print(stderr,
               "'{}' has joined already. Whoever joins with this token takes its place; the client "
               "that has the name now is then rejected\n",
               options.name);
  if (!options.output.empty())
    return write_secret_file(posix_files(), options.output, invited.token);
  print_secret(invited.token, "--output FILE");
  return {};
}

Act enroll_act(const EnrollOptions& options) {
  return {.text = text_of_invitation(options.role, options.examples_max), .client = options.name};
}

void declare_member(CLI::App& command, MemberOptions& options) {
  command.add_option("NAME", options.name, "The client's name")->required();
}

Result<void> revoke_client(const MemberOptions& options) {
  FL_TRY(const auto store, open_store(options.state, false));
  FL_TRY(const std::string done, revoke_member(*store, options.name, command_line_user()));
  fmt::print("{}\n", done);
  return {};
}

Act revoke_act(const MemberOptions& options) {
  return {.text = "revokes the client", .client = options.name};
}

Result<void> pardon_client(const MemberOptions& options) {
  FL_TRY(const auto store, open_store(options.state, false));
  FL_TRY(const std::string done, pardon_member(*store, options.name));
  fmt::print("{}\n", done);
  return {};
}

Act pardon_act(const MemberOptions& options) {
  return {.text = "pardons the client", .client = options.name};
}

void declare_rotate(CLI::App& command, RotateOptions& options) {
  command.add_flag("--finish", options.finish,
                   "Drop the old authority: members that have not been connected since the new one "
                   "was made must join again");
  command
      .add_flag("--intermediate", options.intermediate,
                "Make an intermediate authority, valid for a year, which certifies the server and "
                "the clients. Then ca.key is not needed any more and may be kept offline")
      ->excludes("--finish");
}

Result<void> make_intermediate(Events& events, Authority& authority, const RotateOptions& options) {
  const auto folder = identity_folder(options);
  FL_TRY(const std::string passphrase, ca_passphrase(options));
  FL_CHECK(authority.make_intermediate(posix_files(), folder, Clock::unix_seconds(), passphrase));
  events.note(0, EventLevel::notice, "a new intermediate authority was made");
  fmt::print(
      "there is a new intermediate authority. Now move {} to a safe place that is not on this\n"
      "machine: the server does not need it until you run this command again, within a year.\n"
      "Members renew their certificates when they connect\n",
      (folder / "ca.key").string());
  return {};
}

Result<void> rotate_authority(const RotateOptions& options) {
  // A running server would go on with its old authority.
  FL_TRY([[maybe_unused]] const auto lock, StateLock::take(options.state));
  FL_TRY(const auto store, open_store(options.state, false));
  FL_TRY(Authority authority, open_authority(store->members(), options));
  const auto folder = identity_folder(options);
  if (options.intermediate) return make_intermediate(store->events(), authority, options);
  if (options.finish) {
    FL_CHECK(authority.finish_rotation(posix_files(), folder));
    store->events().note(0, EventLevel::notice, "the old authority was dropped");
    fmt::print("the old authority is dropped; tokens that nobody has used are void\n");
    return {};
  }
  FL_TRY(const std::string passphrase, ca_passphrase(options));
  FL_CHECK(authority.begin_rotation(posix_files(), folder, Clock::unix_seconds(), passphrase));
  store->events().note(0, EventLevel::notice, "a new authority was made beside the old one");
  fmt::print(
      "there is a new authority beside the old one. Members renew their certificates when they\n"
      "connect; once all have ('fl-server clients' says when each was last seen), stop the server\n"
      "and run 'fl-server rotate-ca --finish'\n");
  return {};
}

Act rotate_act(const RotateOptions& options) {
  if (options.intermediate) return {"makes an intermediate authority"};
  return {options.finish ? "drops the old authority" : "makes a new authority"};
}

}  // namespace

Command enroll_command() {
  return make_command<EnrollOptions>(
      "enroll",
      "Makes a join token for a client and prints it to standard output, with nothing else",
      {.declare = declare_enroll, .run = enroll_client, .act = enroll_act});
}

Command revoke_command() {
  return make_command<MemberOptions>(
      "revoke", "Ends a client's sessions and never admits it again",
      {.declare = declare_member, .run = revoke_client, .act = revoke_act});
}

Command pardon_command() {
  return make_command<MemberOptions>(
      "pardon",
      "Has a client asked again that was asked several times without an update that counts, and is "
      "not asked for a while",
      {.declare = declare_member, .run = pardon_client, .act = pardon_act});
}

Command rotate_command() {
  return make_command<RotateOptions>(
      "rotate-ca",
      "Makes a new certificate authority beside the old one, while the server is stopped. "
      "Members renew by themselves; then --finish drops the old one. Or makes an "
      "intermediate, so that the authority's key may be kept offline",
      {.declare = declare_rotate, .run = rotate_authority, .act = rotate_act});
}

}  // namespace fl::server
