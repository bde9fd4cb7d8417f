// SPDX-License-Identifier: Apache-2.0
// The command line of fl-server.
#pragma once

#include "server/history/format.hpp"
#include "server/run/settings.hpp"
#include "shared/flags/given_flags.hpp"
#include "shared/flags/traffic_flags.hpp"
#include "shared/net/server_address.hpp"

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace fl {

struct Command;

struct ServerOptions {
  const Command* command = nullptr;    // Null: none was given, so the server serves.
  std::vector<std::string> arguments;  // The command line, so that the flags can be read again.
  GivenFlags flags;                    // The flags of the program itself that were given.

  std::string state = "fl-state";
  std::string listen = "0.0.0.0:8443";
  std::string advertise;  // HOST or HOST:PORT in tokens; "": derived from --listen.
  std::string admin = "127.0.0.1:8080";
  std::string admin_hosts;  // Names, separated by commas.
  std::string admin_token_file;
  bool admin_show_clients = false;
  bool metrics_by_client = false;
  std::string otlp_endpoint;  // A URL, "off", or "": as the environment says.
  std::string ca_passphrase_file;
  std::string ready_file;
  TrafficOptions traffic;
  RunSettings settings;
  std::set<std::string> given;  // The names of the given flags of a run's settings.
  bool new_run = false;
  bool older_history = false;
  bool stay = false;
  bool log_json = false;
  bool verbose = false;

  // history, clients
  std::int64_t run = 0;  // 0: the run under way, or the newest.
  bool codecs = false;   // Prints what each codec cost and brought, instead of rounds.
  bool events = false;   // Prints events, instead of rounds.
  bool metrics = false;  // Prints all metrics of each version, instead of rounds.
  bool choices = false;  // Prints who was asked for which codec, and why, instead of rounds.
  bool runs = false;
  bool all_runs = false;
  Format format = Format::table;
  // compare
  RunId other_run = 0;
  std::optional<double> reach;
  // export
  std::optional<std::uint32_t> round;  // None: the newest round.
  std::string model_format;            // "": the format that the file's name ends with.
  std::string file;                    // The file that history --plot, export and backup write.
  // replay
  std::string scratch;
  // operator
  std::string action;
  // prune
  std::optional<std::uint64_t> keep_runs;
  std::optional<double> older_than_days;
  bool dry_run = false;
  // replay, doctor
  bool as_json = false;
  // queue
  std::int64_t drop = 0;  // Takes this run out of the queue; 0: adds one.
  // rotate-ca
  bool finish = false;
  bool intermediate = false;
  // enroll, revoke
  std::string name;
  double expires_s = 3600;
  std::string role;  // "": not given.
  std::optional<std::uint64_t> examples_max;
};

/// A sub-command's row in the audit.
struct Act {
  std::string text = {};    // "": nothing is recorded.
  std::string client = {};  // The client that the act is about; "": none.
  bool only_reads = false;  // The act takes data out of the state, and changes nothing in it.
};

/// One sub-command of fl-server. The list is in commands.cpp;
/// docs/design/adding-a-sub-command.md says how to add one.
struct Command {
  std::string_view name;
  std::string_view help;
  /// Adds the command's own flags, whose values go into `options`. Null: it has none.
  void (*declare)(CLI::App& command, ServerOptions& options) = nullptr;
  /// Does the command's work and prints to standard output; main() prints the error.
  Result<void> (*run)(const ServerOptions& options) = nullptr;
  /// Replaces `run` in a command whose exit code says what it has found.
  Result<int> (*judge)(const ServerOptions& options) = nullptr;
  /// Whether the command uses the flags of a run's settings. Null: it refuses them.
  bool (*uses_settings)(const ServerOptions& options) = nullptr;
  bool takes_all = false;  // The command looks at flags of the server itself, too.
  /// Makes the command's row in the audit (command_audit.hpp). Null: it only shows things, so it
  /// neither changes the state nor takes models or the history out of it.
  Act (*act)(const ServerOptions& options) = nullptr;
};

/// The first of the `given` flags that has no effect beside the others, and why; "" if all have.
[[nodiscard]] std::string idle_setting(const RunSettings& settings,
                                       const std::set<std::string>& given);

/// Adds the flags of a run's settings. `given` gets the names of those that are used. Both must
/// outlive the parsing.
void declare_run_settings(CLI::App& app, RunSettings& settings, std::set<std::string>& given);

/// Returns the exit code when the program is to end now (--help, wrong flags), -1 to go on. The
/// commands must outlive `options`.
int parse_options(int argc, const char* const* argv, std::span<const Command> commands,
                  ServerOptions& options);

/// Reads the same command line once more, with the TOML file as it is now.
[[nodiscard]] Result<ServerOptions> read_options_again(const std::vector<std::string>& arguments,
                                                       std::span<const Command> commands);

}  // namespace fl
