// SPDX-License-Identifier: Apache-2.0
#include "server/app/command_line.hpp"

#include "server/app/setting_flags.hpp"
#include "server/run/settings_table.hpp"
#include "shared/base/documents.hpp"
#include "shared/base/version.hpp"
#include "shared/wire/message.hpp"

#include <fmt/format.h>

#include <iostream>
#include <memory>

namespace fl::server {

namespace {

/// Marks a flag that the server alone has, and no sub-command.
CLI::Option* mark_serving(CommandLine& line, CLI::Option* option) {
  line.serve_flags.insert(option->get_name());
  return option;
}

/// The flags about the runs that a server has.
void declare_runs_flags(CLI::App& app, CommandLine& line) {
  ServeOptions& options = line.program;
  const auto serving = [&line](CLI::Option* option) { return mark_serving(line, option); };
  serving(app.add_option("--members", options.members,
                         "The signed list of the members who mask their updates in a run with "
                         "--secure-aggregation (see 'fl-server members')"))
      ->type_name("FILE")
      ->check(not_empty());
  serving(
      app.add_flag("--new-run", options.new_run,
                   "Begin a new run in the same state, and end all runs that are not finished"));
  serving(app.add_flag(
      "--older-history", options.older_history,
      "Go on from a history that is older than the files beside it: moves those files "
      "aside. What was recorded since then is forgotten, members and revocations too"));
  serving(app.add_flag("--stay", options.stay,
                       "Do not exit after the run: wait for the next one (see 'fl-server queue')"));
  serving(
      app.add_option("--queue-patience", options.queue_patience_s,
                     "Seconds after which a run that the clients here can't train lets the next "
                     "run in the queue go first; 0: never")
          ->check(real_number_in(0, 1e6)));
}

void declare_server_flags(CLI::App& app, CommandLine& line) {
  ServeOptions& options = line.program;
  const auto serving = [&line](CLI::Option* option) { return mark_serving(line, option); };
  app.add_option("--state", options.state,
                 "Folder for the history, the checkpoints, the spool and the identity")
      ->check(not_empty())
      ->capture_default_str();
  add_fixed_modes_flag(app);
  serving(app.add_option("--listen", options.listen,
                         "HOST:PORT where clients connect; port 0: any free port"))
      ->capture_default_str();
  serving(app.add_option(
      "--advertise", options.advertise,
      "HOST or HOST:PORT by which clients reach this server; join tokens contain it"));
  serving(app.add_option(
              "--admin", options.admin,
              "Where the dashboard, /healthz, /metrics and /api are: HOST:PORT, or unix:PATH, "
              "which only this user may open; 'off': none"))
      ->capture_default_str();
  serving(app.add_option(
      "--admin-host", options.admin_hosts,
      "NAME[,NAME]: by which the admin pages may be reached, beside IP addresses and "
      "localhost"));
  serving(app.add_option("--admin-token-file", options.admin_token_file,
                         "A file with a token; requests for the admin pages must present it as "
                         "'Authorization: Bearer TOKEN', and browsers log in with it"));
  serving(app.add_flag(
      "--admin-show-clients", options.admin_show_clients,
      "Show figures of single clients' data on the admin pages: losses, norms, numbers of "
      "examples, and means over fewer than three clients"));
  serving(app.add_flag("--metrics-by-client", options.metrics_by_client,
                       "Let /metrics, and traces, tell of each client by its name"));
  serving(app.add_option(
      "--otlp-endpoint", options.otlp_endpoint,
      "http[s]://HOST[:PORT][/v1/traces] of an OpenTelemetry collector, which gets a "
      "trace of each round (OTLP/HTTP with JSON); 'off': none. Without it, "
      "OTEL_EXPORTER_OTLP_ENDPOINT and its kin say where"));
  app.add_option("--ca-passphrase-file", options.ca_passphrase_file,
                 "A file with the passphrase of the authority's key, which is kept encrypted from "
                 "then on");
  declare_traffic_flags(app, options.traffic, "this server, with all clients together,");
  line.serve_flags.insert(traffic_flags.begin(), traffic_flags.end());
  serving(
      app.add_option("--ready-file", options.ready_file,
                     "Write the real addresses to this file, as JSON, once the server listens"));
  declare_runs_flags(app, line);
  app.add_flag("--log-json", options.log_json, "Log JSON objects, one a line");
  app.add_flag("--verbose", options.verbose, "Log more");
}

void declare_all(CLI::App& app, std::span<const Command> commands, CommandLine& line) {
  app.set_version_flag("--version", fmt::format("fl-server {}, protocol {}",
                                                software_version_and_commit, protocol_version));
  add_config_flag(app, "A TOML file with any of these flags (rounds = 500)");
  app.fallthrough();
  // If a flag is given twice, the last one counts: so users can override the flags of a script.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  declare_server_flags(app, line);
  declare_run_settings(app, line.program.settings, line.program.given);
  for (const Command& command : commands) {
    CLI::App* sub = app.add_subcommand(std::string(command.name), std::string(command.help));
    const std::shared_ptr<CommandCall> call = command.make_call();
    call->declare(*sub);
    // `app` keeps the calls of all commands, as its flags write into their options.
    sub->callback([&line, &command, call] {
      line.command = &command;
      line.call = call;
    });
  }
  app.require_subcommand(0, 1);
}

void parse(CLI::App& app, int argc, const char* const* argv, CommandLine& line) {
  app.parse(argc, argv);
  line.program.arguments.assign(argv, argv + argc);
  line.program.flags = given_flags(app);
  if (line.call) line.call->take(line.program);
}

/// The first flag on the command line that the sub-command would ignore, and why; "" if there is
/// none. Flags from a TOML file are not looked at: one file may serve several sub-commands.
std::string ignored_flag(std::span<const char* const> arguments, const CommandLine& line) {
  if (line.call == nullptr || line.call->uses_serve_flags()) return {};
  for (const std::string_view word : arguments) {
    const auto name = word.substr(0, word.find('='));
    if (line.serve_flags.contains(name))
      return fmt::format("{} is for the server itself, not for a sub-command", name);
    const bool is_of_run =
        name.starts_with("--") && line.program.given.contains(std::string(name.substr(2)));
    if (is_of_run && !line.call->uses_settings()) {
      return fmt::format("{} is a setting of a run, and '{}' does not use it here", name,
                         line.command->name);
    }
  }
  return {};
}

}  // namespace

void declare_run_settings(CLI::App& app, RunSettings& settings, std::set<std::string>& given) {
  declare_settings(app, run_setting_table(), settings, given);
}

Result<void> read_run_settings(const std::vector<std::string>& words, RunSettings& settings,
                               std::set<std::string>& given) {
  CLI::App app;
  declare_run_settings(app, settings, given);
  try {
    app.parse(std::vector(words.rbegin(), words.rend()));  // It takes the last word first.
  } catch (const CLI::ParseError& error) {
    return Error(Errc::invalid_input, error_text(app, error));
  }
  return {};
}

std::string idle_setting(const RunSettings& settings, const std::set<std::string>& given) {
  const auto optimizer = parse_optimizer(settings.optimizer);
  if (optimizer && !optimizer->is_sgd() && given.contains("momentum")) {
    return fmt::format("--momentum is for sgd and nesterov; --optimizer {} has beta1= instead",
                       settings.optimizer);
  }
  return {};
}

int parse_options(int argc, const char* const* argv, std::span<const Command> commands,
                  CommandLine& line) {
  CLI::App app{
      "Coordinates a federation: samples clients, sends them the model, adds up their updates.\n"
      "Without a sub-command it serves, as in: fl-server --rounds 500",
      "fl-server"};
  app.footer(documents_footer());
  declare_all(app, commands, line);
  try {
    parse(app, argc, argv, line);
  } catch (const CLI::ParseError& error) {
    return exit_code(app, error);
  }
  const std::span arguments(argv, static_cast<std::size_t>(argc));
  for (const auto& why : {ignored_flag(arguments.subspan(1), line),
                          idle_setting(line.program.settings, line.program.given)}) {
    if (why.empty()) continue;
    std::cerr << "fl-server: " << why << "\n";
    return wrong_usage;
  }
  return -1;
}

Result<ServeOptions> read_options_again(const std::vector<std::string>& arguments,
                                        std::span<const Command> commands) {
  std::vector<const char*> words;
  words.reserve(arguments.size());
  for (const std::string& word : arguments) words.push_back(word.c_str());
  CLI::App app;
  CommandLine line;
  declare_all(app, commands, line);
  try {
    parse(app, static_cast<int>(words.size()), words.data(), line);
  } catch (const CLI::ParseError& error) {
    return Error(Errc::invalid_input, error_text(app, error));
  }
  const ServeOptions& options = line.program;
  if (std::string why = idle_setting(options.settings, options.given); !why.empty())
    return Error(Errc::invalid_input, std::move(why));
  return options;
}

}  // namespace fl::server
