// SPDX-License-Identifier: Apache-2.0
// A sub-command of fl-server: a name, flags, and functions over an options struct of its own. The
// list is in commands.cpp; docs/design/adding-a-sub-command.md says how to add one.
#pragma once

#include "server/app/options.hpp"
#include "shared/base/error.hpp"

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

namespace CLI {
class App;
}  // namespace CLI

namespace fl::server {

/// A sub-command's row in the audit.
struct Act {
  std::string text = {};    // "": nothing is recorded.
  std::string client = {};  // The client that the act is about; "": none.
  bool only_reads = false;  // The act takes data out of the state, and changes nothing in it.
};

/// One use of a sub-command: its options, and what it does with them.
class CommandCall {
 public:
  virtual ~CommandCall() = default;
  /// Adds the sub-command's own flags, whose values go into its options.
  virtual void declare(CLI::App& command) = 0;
  /// After the flags were read: takes those of the program that its options have.
  virtual void take(const ServeOptions& program) = 0;
  /// True if flags of the server itself have an effect.
  [[nodiscard]] virtual bool uses_serve_flags() const = 0;
  /// True if the flags of a run's settings have an effect.
  [[nodiscard]] virtual bool uses_settings() const = 0;
  [[nodiscard]] virtual Act act() const = 0;
  /// Does the work, prints to standard output, and returns the exit code. main() prints the error.
  [[nodiscard]] virtual Result<int> run() const = 0;
};

/// The functions of a sub-command whose options are `Options`.
template <class Options>
struct CommandFunctions {
  /// Adds the command's own flags, whose values go into `options`. Null: it has none.
  void (*declare)(CLI::App& command, Options& options) = nullptr;
  /// Does the command's work and prints to standard output; main() prints the error.
  Result<void> (*run)(const Options& options) = nullptr;
  /// Replaces `run` in a command whose exit code says what it has found.
  Result<int> (*judge)(const Options& options) = nullptr;
  /// True if the command uses the flags of a run's settings. Null: it does if its options have
  /// them.
  bool (*uses_settings)(const Options& options) = nullptr;
  /// Makes the command's row in the audit (command_audit.hpp). Null: it only shows things, so it
  /// neither changes the state nor takes models or the history out of it.
  Act (*act)(const Options& options) = nullptr;
};

/// A row of the table of sub-commands.
struct Command {
  std::string_view name;
  std::string_view help;
  /// Makes its options, with the values that they have without flags.
  std::function<std::unique_ptr<CommandCall>()> make_call;
};

template <class Options>
class CallOf final : public CommandCall {
  static_assert(std::is_base_of_v<SharedOptions, Options>);

 public:
  explicit CallOf(const CommandFunctions<Options>& functions) : functions_(functions) {
    FL_ASSERT((functions_.run != nullptr) != (functions_.judge != nullptr));
  }

  void declare(CLI::App& command) override {
    if (functions_.declare != nullptr) functions_.declare(command, options_);
  }
  void take(const ServeOptions& program) override {
    static_cast<Shared&>(options_) = static_cast<const Shared&>(program);
  }
  [[nodiscard]] bool uses_serve_flags() const override {
    return std::is_base_of_v<ServeOptions, Options>;
  }
  [[nodiscard]] bool uses_settings() const override {
    if (functions_.uses_settings != nullptr) return functions_.uses_settings(options_);
    return std::is_base_of_v<RunOptions, Options>;
  }
  [[nodiscard]] Act act() const override {
    return functions_.act != nullptr ? functions_.act(options_) : Act();
  }
  [[nodiscard]] Result<int> run() const override {
    if (functions_.judge != nullptr) return functions_.judge(options_);
    FL_CHECK(functions_.run(options_));
    return 0;
  }

 private:
  /// The part that its options share with the program's.
  using Shared = std::conditional_t<
      std::is_base_of_v<ServeOptions, Options>, ServeOptions,
      std::conditional_t<std::is_base_of_v<RunOptions, Options>, RunOptions, SharedOptions>>;

  CommandFunctions<Options> functions_;
  Options options_;
};

template <class Options>
[[nodiscard]] Command make_command(std::string_view name, std::string_view help,
                                   const CommandFunctions<Options>& functions) {
  return {name, help, [functions] { return std::make_unique<CallOf<Options>>(functions); }};
}

}  // namespace fl::server
