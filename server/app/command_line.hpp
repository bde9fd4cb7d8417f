// SPDX-License-Identifier: Apache-2.0
// The command line of fl-server.
#pragma once

#include "server/app/command.hpp"
#include "server/app/options.hpp"

#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace fl::server {

/// A command line that was read.
struct CommandLine {
  ServeOptions program;  // The flags of the program itself.
  /// The names, with dashes, of those that the server alone has: sub-commands refuse them.
  std::set<std::string, std::less<>> serve_flags;
  const Command* command = nullptr;   // Null: none was given, so the server serves.
  std::shared_ptr<CommandCall> call;  // The command's options; null if `command` is.
};

/// The first of the `given` flags that has no effect beside the others, and why; "" if all have.
[[nodiscard]] std::string idle_setting(const RunSettings& settings,
                                       const std::set<std::string>& given);

/// Reads settings from words as the command line has them ("--rounds=20"). Errors: invalid_input,
/// with what the command line says.
[[nodiscard]] Result<void> read_run_settings(const std::vector<std::string>& words,
                                             RunSettings& settings, std::set<std::string>& given);

/// Adds the flags of a run's settings. `given` gets the names of those that are used. Both must
/// outlive the parsing.
void declare_run_settings(CLI::App& app, RunSettings& settings, std::set<std::string>& given);

/// Returns the exit code when the program is to end now (--help, wrong flags), -1 to go on. The
/// commands must outlive `line`.
int parse_options(int argc, const char* const* argv, std::span<const Command> commands,
                  CommandLine& line);

/// Reads the same command line once more, with the TOML file as it is now.
[[nodiscard]] Result<ServeOptions> read_options_again(const std::vector<std::string>& arguments,
                                                      std::span<const Command> commands);

}  // namespace fl::server
