// SPDX-License-Identifier: Apache-2.0
#include "server/app/operator_commands.hpp"

#include "server/app/command_audit.hpp"
#include "server/app/control.hpp"
#include "server/app/open_store.hpp"
#include "server/history/format.hpp"
#include "shared/base/io/secret_file.hpp"
#include "shared/flags/flags.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <string>

namespace fl::server {

namespace {

struct OperatorOptions : SharedOptions {
  std::string action;  // "add", "list" or "revoke".
  std::string name;
  std::string role;  // "": not given.
  Format format = Format::table;
};

Result<void> add_operator(const OperatorOptions& options) {
  if (options.role.empty()) {
    return Error(Errc::invalid_input,
                 "--role: say what the operator may do: viewer (see), operator (queue and end runs "
                 "too), or admin (invite and revoke too)");
  }
  FL_TRY(const auto store, open_store(options.state, false));
  FL_TRY(const std::string token,
         name_operator(store->operators(), options.name, options.role, command_line_user()));
  fmt::print(stderr, "The token of '{}', which is shown only now:\n", options.name);
  print_secret(token, "");
  return {};
}

Result<void> revoke_operator(const OperatorOptions& options) {
  FL_TRY(const auto store, open_store(options.state, false));
  FL_CHECK(store->operators().revoke(options.name, command_line_user()));
  fmt::print("'{}' is revoked: its token and its logins are worth nothing any more\n",
             options.name);
  return {};
}

void declare_operator(CLI::App& command, OperatorOptions& options) {
  command.add_option("ACTION", options.action, "add, list or revoke")
      ->required()
      ->check(one_of({"add", "list", "revoke"}));
  command.add_option("NAME", options.name, "The operator's name, for add and revoke");
  command.add_option("--role", options.role, "For add: viewer, operator or admin")
      ->check(one_of({"viewer", "operator", "admin"}));
  command.add_flag_callback(
      "--json", [&options] { options.format = Format::json; }, "For list: print JSON");
}

Result<void> change_operators(const OperatorOptions& options) {
  if (options.action == "list") {
    FL_TRY(const auto store, open_store(options.state, true));
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

Act operator_act(const OperatorOptions& options) {
  if (options.action == "list" || options.name.empty()) return {};
  if (options.action == "revoke") return {fmt::format("revokes the operator {}", options.name)};
  if (options.role.empty()) return {};  // The command refuses it.
  return {fmt::format("names an operator '{}' with the role {}", options.name, options.role)};
}

}  // namespace

Command operator_command() {
  return make_command<OperatorOptions>(
      "operator", "Adds, lists and revokes the people who may log in at the admin pages",
      {.declare = declare_operator, .run = change_operators, .act = operator_act});
}

}  // namespace fl::server
