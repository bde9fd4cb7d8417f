// The command line of fl-sim.
#pragma once

#include "client/learn/trainer.hpp"
#include "server/run/settings.hpp"

#include <cstdint>
#include <set>
#include <string>

namespace fl {

struct SimOptions {
  std::string state = "fl-sim-state";
  std::uint32_t clients = 10;
  int threads = 0;                // 0: one for each core.
  std::string test;               // Data that every version is evaluated on; "": none.
  std::uint32_t epochs_from = 0;  // 0: all take settings.local_epochs.
  std::string json;               // A file for the history of the run; "": none.
  bool log_json = false;
  bool verbose = false;
  RunSettings settings;
  std::set<std::string> given;  // Names of the settings' flags that were given.
  LearnOptions learn;
};

/// Returns the exit code when the program is to end now (--help, wrong flags), -1 to go on.
int parse_options(int argc, char** argv, SimOptions& options);

}  // namespace fl
