// SPDX-License-Identifier: Apache-2.0
#include "server/app/command_audit.hpp"

#include "server/app/commands.hpp"
#include "server/run/settings_table.hpp"
#include "shared/base/json.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>

#include <pwd.h>
#include <unistd.h>

#include <array>

namespace fl {

namespace {

/// "--rounds 20 --codec "qsgd:8"": the settings of a run that were given.
std::string given_settings(const ServerOptions& options) {
  const RunSettingTable table = run_setting_table();
  std::string text;
  for (const std::string& flag : options.given) {
    const RunSettingRow* const row = table.find(flag);
    if (row != nullptr)
      text += fmt::format("{}--{} {}", text.empty() ? "" : " ", flag,
                          json_text(row->value_of(options.settings)));
  }
  return text;
}

Result<void> note(Store& store, const Act& act, std::string_view text) {
  return store.audit().add_control(command_line_user(),
                                   printable(act.client, limits::control_text_bytes_max),
                                   printable(text, limits::control_text_bytes_max));
}

Result<void> note_before(const ServerOptions& options, const Act& act) {
  FL_TRY(const auto store, open_store(options, false));
  return note(*store, act, act.text);
}

void note_failure(const ServerOptions& options, const Act& act, const Command& command,
                  const Error& why) {
  auto store = open_store(options, false);
  const auto noted =
      store ? note(**store, act, fmt::format("'{}' failed: {}", command.name, why.message()))
            : Result<void>(store.error());
  if (!noted)
    log_warn("can't write into the audit that '{}' failed: {}", command.name,
             noted.error().message());
}

Result<int> do_command(const Command& command, const ServerOptions& options) {
  if (command.judge != nullptr) return command.judge(options);
  FL_CHECK(command.run(options));
  return 0;
}

}  // namespace

std::string command_line_user() {
  passwd entry{};
  passwd* found = nullptr;
  std::array<char, 4096> room{};
  const uid_t user = ::geteuid();
  if (::getpwuid_r(user, &entry, room.data(), room.size(), &found) == 0 && found != nullptr)
    return fmt::format("{} at the command line", entry.pw_name);
  return fmt::format("user {} at the command line", user);
}

Result<int> run_command(const Command& command, const ServerOptions& options) {
  const Act act = command.act != nullptr ? command.act(options) : Act();
  if (act.text.empty()) return do_command(command, options);
  if (const auto noted = note_before(options, act); !noted) {
    const Errc why = noted.error().code();
    // A copy of a state may lie where nothing can be written.
    if (!act.only_reads || why == Errc::not_found || why == Errc::conflict) return noted.error();
    log_warn("this is not in the audit ({}): {}", noted.error().message(), act.text);
    return do_command(command, options);
  }
  auto done = do_command(command, options);
  if (!done) note_failure(options, act, command, done.error());
  return done;
}

Result<void> note_start(Store& store, const ServerOptions& options) {
  const std::string settings = given_settings(options);
  Act act;
  act.text = fmt::format("starts the server{}{}{}", options.new_run ? " with a new run" : "",
                         settings.empty() ? "" : ", with ", settings);
  return note(store, act, act.text);
}

std::string text_of_invitation(const std::string& role,
                               const std::optional<std::uint64_t>& examples_max) {
  std::string text = "makes a join token for the client, with the role ";
  text += role.empty() ? "that the name has" : role;
  if (examples_max && *examples_max == 0) text += " and no limit of examples";
  if (examples_max && *examples_max > 0)
    text += fmt::format(" and at most {} examples", *examples_max);
  return text;
}

Act queue_act(const ServerOptions& options) {
  if (options.drop != 0) return {fmt::format("takes run {} out of the queue", options.drop)};
  return {options.given.empty() ? "" : "queues a run with " + given_settings(options)};
}

Act export_act(const ServerOptions& options) {
  return {.text = fmt::format(
              "exports a model ({}, {}) to {}",
              options.run == 0 ? "of the run at hand" : fmt::format("of run {}", options.run),
              options.round ? fmt::format("after round {}", *options.round) : "the newest",
              options.file),
          .only_reads = true};
}

Act backup_act(const ServerOptions& options) {
  return {.text = "makes a backup in " + options.file, .only_reads = true};
}

Act prune_act(const ServerOptions& options) {
  if (options.dry_run || (!options.keep_runs && !options.older_than_days)) return {};
  std::string which;
  if (options.keep_runs) which += fmt::format(" but the newest {}", *options.keep_runs);
  if (options.older_than_days)
    which += fmt::format(" that ended {:g} days ago or more", *options.older_than_days);
  return {"removes the runs that are over," + which};
}

Act enroll_act(const ServerOptions& options) {
  return {.text = text_of_invitation(options.role, options.examples_max), .client = options.name};
}

Act revoke_act(const ServerOptions& options) {
  return {.text = "revokes the client", .client = options.name};
}

Act end_run_act(const ServerOptions& options) { return {fmt::format("ends run {}", options.run)}; }

Act operator_act(const ServerOptions& options) {
  if (options.action == "list" || options.name.empty()) return {};
  if (options.action == "revoke") return {fmt::format("revokes the operator {}", options.name)};
  if (options.role.empty()) return {};  // It is refused.
  return {fmt::format("names an operator '{}' with the role {}", options.name, options.role)};
}

Act rotate_act(const ServerOptions& options) {
  if (options.intermediate) return {"makes an intermediate authority"};
  return {options.finish ? "drops the old authority" : "makes a new authority"};
}

}  // namespace fl
