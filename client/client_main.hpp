// SPDX-License-Identifier: Apache-2.0
// A whole client around a trainer of your own in C++, for CMake's Tributary::client:
//
//   class Houses final : public fl::Trainer { … };   // See client/learn/trainer.hpp.
//   fl::Result<std::unique_ptr<fl::Trainer>> make(const std::string& model) {
//     return std::make_unique<Houses>();
//   }
//   int main(int argc, char** argv) { return fl::client_main(argc, argv, make); }
//
// The program joins with a token, renews its certificate, resumes downloads and uploads, survives
// crashes of itself and of the server, and knows all codecs and methods, as fl-client does. It has
// fl-client's flags, except those about built-in models, their data and --trainer. `PROGRAM
// initial-weights FILE` writes the server's file of initial weights.
#pragma once

#include "client/learn/trainer.hpp"

#include <string>
#include <utility>
#include <vector>

namespace fl {

/// A flag of your own, such as --data FILE. It may also stand in the file of --config.
struct ClientFlag {
  std::string name;              // With its dashes.
  std::string help;              // One line for --help.
  std::string* value = nullptr;  // The text at the start is the default. Must outlive the client.
};

struct ClientProgram {
  std::string name = "fl-client";  // For --help and --version.
  std::string about = {};          // What the program does, for --help.
  /// Empty: the built-in models, and programs of users (fl-client itself).
  TrainerFactory make_trainer = {};
  std::vector<ClientFlag> flags = {};
};

/// Runs the client until the run is over, SIGINT or SIGTERM asks it to stop, or an error ends it.
/// Returns the program's exit code: 0, 1 after an error, 2 for a wrong command line, 3 if it gave
/// up to reach the server (--max-wait, --max-retries). Errors go to the log on standard error. Call
/// it once, in main(), before the program has threads. It sets the umask to 077 and ignores
/// SIGPIPE and SIGXFSZ. `program.make_trainer` and the trainers are called on one thread of its
/// own.
[[nodiscard]] int client_main(int argc, char** argv, ClientProgram program);

[[nodiscard]] inline int client_main(int argc, char** argv, TrainerFactory make_trainer) {
  ClientProgram program;
  program.make_trainer = std::move(make_trainer);
  return client_main(argc, argv, std::move(program));
}

}  // namespace fl
