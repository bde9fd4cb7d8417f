// SPDX-License-Identifier: Apache-2.0
#include "server/app/operator_commands.hpp"

#include "server/app/command_audit.hpp"
#include "server/app/control.hpp"
#include "shared/base/flags.hpp"

#include <fmt/format.h>

#include <limits>

namespace fl {

namespace {

Result<void> add_operator(const ServerOptions& options) {
  if (options.role.empty()) {
    return Error(Errc::invalid_input,
                 "--role: say what the operator may do: viewer (see), operator (queue and end runs "
                 "too), or admin (invite and revoke too)");
  }
  FL_TRY(const auto store, open_store(options, false));
  FL_TRY(const std::string token,
         name_operator(*store, options.name, options.role, command_line_user()));
  fmt::print(stderr, "The token of '{}', which is shown only now:\n", options.name);
  fmt::print("{}\n", token);
  return {};
}

Result<void> revoke_operator(const ServerOptions& options) {
  FL_TRY(const auto store, open_store(options, false));
  FL_CHECK(store->operators().revoke(options.name, command_line_user()));
  fmt::print("'{}' is revoked: its token and its logins are worth nothing any more\n",
             options.name);
  return {};
}

}  // namespace

void declare_operator(CLI::App& command, ServerOptions& options) {
  command.add_option("ACTION", options.action, "add, list or revoke")
      ->required()
      ->check(CLI::IsMember({"add", "list", "revoke"}));
  command.add_option("NAME", options.name, "The operator's name, for add and revoke");
  command.add_option("--role", options.role, "For add: viewer, operator or admin")
      ->check(CLI::IsMember({"viewer", "operator", "admin"}));
  command.add_flag_callback(
      "--json", [&options] { options.format = Format::json; }, "For list: print JSON");
}

Result<void> change_operators(const ServerOptions& options) {
  if (options.action == "list") {
    FL_TRY(const auto store, open_store(options, true));
    FL_TRY(const auto operators, store->operators().all());
    fmt::print("{}", format_rows(operators, options.format));
    return {};
  }
  if (options.name.empty()) {
    return Error(
        Errc::invalid_input,
        fmt::format("give the operator's name: fl-server operator {} NAME", options.action));
  }
  return options.action == "add" ? add_operator(options) : revoke_operator(options);
}

void declare_end_run(CLI::App& command, ServerOptions& options) {
  command.add_option("RUN", options.run, "The number of the run")
      ->required()
      ->check(whole_number(1, std::numeric_limits<RunId>::max()));
}

Result<void> end_run_now(const ServerOptions& options) {
  FL_TRY(const auto store, open_store(options, false));
  FL_CHECK(end_run(*store, options.run, command_line_user()));
  fmt::print("run {} ends after the round that is under way\n", options.run);
  return {};
}

}  // namespace fl
