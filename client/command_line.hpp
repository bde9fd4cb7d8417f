// SPDX-License-Identifier: Apache-2.0
// The command line of fl-client.
#pragma once

#include "client/agent/patience.hpp"
#include "client/client_main.hpp"
#include "client/learn/learn_options.hpp"
#include "client/learn/process/trainer_channel.hpp"
#include "client/secure_flags.hpp"
#include "client/site/site_options.hpp"
#include "shared/base/limits.hpp"
#include "shared/flags/given_flags.hpp"
#include "shared/flags/traffic_flags.hpp"

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace fl::client {

struct ClientOptions {
  std::string program = "fl-client";  // ClientProgram::name, for errors.
  std::string state = "fl-client-state";
  std::string join;        // A join token to enrol with first, "-" for standard input, or "".
  std::string join_file;   // A file with the join token, or "".
  bool only_join = false;  // `fl-client join TOKEN`: enrol, then exit.
  std::string name;        // The name to enrol with; "": the token's.
  std::string proxy;       // An HTTP proxy, "none", or "": as the environment says.
  client::Patience patience;
  TrafficOptions traffic;
  SecureFlags secure;
  std::uint64_t parameters_max = limits::client_parameters_max;  // Larger models are refused.
  bool stay = false;  // Wait for the next run when one is over.
  bool log_json = false;
  bool verbose = false;
  std::string trace;  // The file of --trace, or "".
  LearnOptions learn;
  site::SiteOptions site;          // Many ranks that train together; not set: one process.
  TrainerCommand trainer;          // A program of the user's that trains instead of `learn`.
  bool doctor = false;             // `fl-client doctor`: look at this machine, then exit.
  bool as_json = false;            // Print what `doctor` finds as JSON.
  std::string initial_weights;     // `fl-client initial-weights FILE`: the file to write, or "".
  std::uint64_t initial_seed = 0;  // The seed of the weights in that file.
  GivenFlags flags;                // Those that were given, of the program itself.
  /// Reads the same command line once more, with its TOML file as it is now.
  std::function<Result<ClientOptions>()> read_again;
};

/// Declares the flags about what to read: --data, --data-memory and --skip-bad-files. `what` begins
/// the help of --data. `learn` must live until `app` has parsed, as below.
void declare_reading_flags(CLI::App& app, LearnOptions& learn, const std::string& what);
/// Declares --device. `what` begins its help.
void declare_device_flag(CLI::App& app, LearnOptions& learn, const std::string& what);

/// Declares the flags about data and training that fl-client and fl-sim share: --data, --partition,
/// --partition-seed, --holdout, --device, --precision. `learn` must live until `app` has parsed.
void declare_data_flags(CLI::App& app, LearnOptions& learn);

/// Declares the flags about a trainer that is a program of the user's, which fl-client and fl-sim
/// share: --trainer, --trainer-once, --trainer-socket, --trainer-env, --trainer-timeout,
/// --trainer-retries. `trainer` must live until `app` has parsed.
void declare_trainer_flags(CLI::App& app, TrainerCommand& trainer);
/// Throws if one of these flags, which are for built-in models, was given beside such a trainer.
void refuse_beside_trainer(const CLI::App& app, std::initializer_list<const char*> flags);

/// Parses the command line. Returns the exit code if the program must exit now (--help, a wrong
/// flag), or -1 to continue. A program with a trainer of its own has its own flags in place of
/// those about built-in models and --trainer.
int parse_options(int argc, char** argv, const ClientProgram& program, ClientOptions& options);

}  // namespace fl::client
