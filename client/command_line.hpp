// The command line of fl-client.
#pragma once

#include "client/learn/trainer.hpp"

#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace fl {

struct ClientOptions {
  std::string state = "fl-client-state";
  std::string join;        // A token: enrol with it first.
  bool only_join = false;  // `fl-client join TOKEN`: enrol and end.
  std::string name;
  bool stay = false;
  bool log_json = false;
  bool verbose = false;
  LearnOptions learn;
};

/// The flags that say what data there is, how it is cut, and what trains: --data, --partition,
/// --partition-seed, --holdout, --device, --precision. `learn` must outlive the parsing.
void declare_data_flags(CLI::App& app, LearnOptions& learn);

/// Returns the exit code when the program is to end now (--help, wrong flags), -1 to go on.
int parse_options(int argc, char** argv, ClientOptions& options);

}  // namespace fl
