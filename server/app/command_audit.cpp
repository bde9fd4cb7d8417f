// SPDX-License-Identifier: Apache-2.0
#include "server/app/command_audit.hpp"

#include "server/app/open_store.hpp"
#include "server/run/settings_table.hpp"
#include "shared/base/json.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>

#include <pwd.h>
#include <unistd.h>

#include <array>

namespace fl::server {

namespace {

Result<void> note(Audit& audit, const Act& act, std::string_view text) {
  return audit.add_control(command_line_user(),
                           printable(act.client, limits::control_text_bytes_max),
                           printable(text, limits::control_text_bytes_max));
}

Result<void> note_before(const std::string& state, const Act& act) {
  FL_TRY(const auto store, open_store(state, false));
  return note(store->audit(), act, act.text);
}

void note_failure(const CommandLine& line, const Act& act, const Error& why) {
  const auto store = open_store(line.program.state, false);
  const auto noted = store ? note((*store)->audit(), act,
                                  fmt::format("'{}' failed: {}", line.command->name, why.message()))
                           : Result<void>(store.error());
  if (!noted)
    log_warn("can't write into the audit that '{}' failed: {}", line.command->name,
             noted.error().message());
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

Result<int> run_command(const CommandLine& line) {
  const Act act = line.call->act();
  if (act.text.empty()) return line.call->run();
  if (const auto noted = note_before(line.program.state, act); !noted) {
    const Errc why = noted.error().code();
    // A copy of a state may lie on a disk that can't be written to.
    if (!act.only_reads || why == Errc::not_found || why == Errc::conflict) return noted.error();
    log_warn("this is not in the audit ({}): {}", noted.error().message(), act.text);
    return line.call->run();
  }
  auto done = line.call->run();
  if (!done) note_failure(line, act, done.error());
  return done;
}

Result<void> note_start(Audit& audit, const ServeOptions& options) {
  const std::string settings = given_settings(options);
  Act act;
  act.text = fmt::format("starts the server{}{}{}", options.new_run ? " with a new run" : "",
                         settings.empty() ? "" : ", with ", settings);
  return note(audit, act, act.text);
}

std::string given_settings(const RunOptions& options) {
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

std::string text_of_invitation(const std::string& role,
                               const std::optional<std::uint64_t>& examples_max) {
  std::string text = "makes a join token for the client, with the role ";
  text += role.empty() ? "that the name has" : role;
  if (examples_max && *examples_max == 0) text += " and no limit of examples";
  if (examples_max && *examples_max > 0)
    text += fmt::format(" and at most {} examples", *examples_max);
  return text;
}

}  // namespace fl::server
