// SPDX-License-Identifier: Apache-2.0
// The flags of fl-server that several of its sub-commands have, as plain structs. The options of a
// sub-command are a struct of its own that derives from the one here which has what it needs. It
// does not see the others, and the command line refuses flags that it does not see (command.hpp).
#pragma once

#include "server/run/settings.hpp"
#include "shared/flags/given_flags.hpp"
#include "shared/flags/traffic_flags.hpp"

#include <set>
#include <string>
#include <vector>

namespace fl::server {

/// The flags that the server and all sub-commands have.
struct SharedOptions {
  std::string state = "fl-state";
  std::string ca_passphrase_file;
  bool log_json = false;
  bool verbose = false;
};

/// For the server and those sub-commands that make a run.
struct RunOptions : SharedOptions {
  RunSettings settings;
  std::set<std::string> given;  // The names of the given flags of a run's settings.
};

/// For the server itself.
struct ServeOptions : RunOptions {
  std::vector<std::string> arguments;  // The command line, so that the flags can be read again.
  GivenFlags flags;                    // The flags of the program itself that were given.

  std::string listen = "0.0.0.0:8443";
  std::string advertise;  // HOST or HOST:PORT in tokens; "": derived from --listen.
  std::string admin = "127.0.0.1:8080";
  std::string admin_hosts;  // Names, separated by commas.
  std::string admin_token_file;
  bool admin_show_clients = false;
  bool metrics_by_client = false;
  std::string otlp_endpoint;  // A URL, "off", or "": as the environment says.
  std::string ready_file;
  std::string members;  // The file of the member list for masked runs; "": none.
  TrafficOptions traffic;
  bool new_run = false;
  bool older_history = false;
  bool stay = false;
  double queue_patience_s = 600;
};

}  // namespace fl::server
