// The command line of fl-server.
#pragma once

#include "server/history/format.hpp"
#include "server/run/settings.hpp"
#include "shared/net/server_address.hpp"

#include <set>
#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace fl {

struct ServerOptions {
  enum class Command { serve, queue, history, enroll, revoke, clients, codecs, strategies };
  Command command = Command::serve;

  std::string state = "fl-state";
  std::string listen = "0.0.0.0:8443";
  std::string advertise;  // HOST or HOST:PORT in tokens; "": guessed from --listen.
  std::string admin = "127.0.0.1:8080";
  std::string ready_file;
  RunSettings settings;
  std::set<std::string> given;  // Names of the settings' flags that were given.
  bool new_run = false;
  bool stay = false;
  bool log_json = false;
  bool verbose = false;

  // history, clients
  std::int64_t run = 0;   // 0: the newest.
  bool codecs = false;    // What each codec cost and brought, instead of rounds.
  bool events = false;    // What happened, instead of rounds.
  bool choices = false;   // Who was asked for which codec, and why, instead of rounds.
  std::int64_t drop = 0;  // 0: a run is queued, none dropped.
  bool runs = false;
  bool all_runs = false;
  Format format = Format::table;
  // enroll, revoke
  std::string name;
  double expires_s = 3600;
};

/// The first of the `given` flags that means nothing beside the others, and why; empty if there is
/// none.
[[nodiscard]] std::string idle_setting(const RunSettings& settings,
                                       const std::set<std::string>& given);

/// The flags of the run's settings; `given` gets the names of those that are used. Both must
/// outlive the parsing.
void declare_run_settings(CLI::App& app, RunSettings& settings, std::set<std::string>& given);

/// Returns the exit code when the program is to end now (--help, wrong flags), -1 to go on.
int parse_options(int argc, char** argv, ServerOptions& options);

}  // namespace fl
