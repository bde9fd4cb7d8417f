// SPDX-License-Identifier: Apache-2.0
// The command line of fl-sim.
#pragma once

#include "client/learn/learn_options.hpp"
#include "client/learn/process/trainer_channel.hpp"
#include "examples/sim/drop_outs.hpp"
#include "server/run/settings.hpp"

#include <cstdint>
#include <set>
#include <string>

namespace fl::sim {

struct SimOptions {
  std::string state = "fl-sim-state";
  std::uint32_t clients = 10;
  int threads = 0;                // 0: one per core.
  std::string test;               // Evaluates every version on this data; "": no evaluation.
  std::uint32_t epochs_from = 0;  // 0: every client trains settings.local_epochs.
  std::uint32_t malicious = 0;    // The number of clients that do what `attack` says.
  std::string attack = "none";    // See attack.hpp.
  DropOuts::Options drop_outs;
  std::string json;  // A file for the rounds of the run; "": none.
  bool log_json = false;
  bool verbose = false;
  server::RunSettings settings;
  std::set<std::string> given;  // The names of the run's flags on the command line.
  LearnOptions learn;
  TrainerCommand trainer;  // Users' programs that train instead of `learn`.
};

/// Parses the command line. Returns the exit code if the program must exit now (--help, a wrong
/// flag), or -1 to continue.
int parse_options(int argc, char** argv, SimOptions& options);

}  // namespace fl::sim
