// SPDX-License-Identifier: Apache-2.0
// ChildProcess: a command, of the user's or a rank of a site, that runs beside this program, in a
// process group of its own. It does not outlive this program, whatever ends that: the group has a
// watcher, a small process that ends it then, with the command's children and theirs, in sessions
// of their own too. What detaches itself from them (a daemon) stays. Any thread, one at a time.
#pragma once

#include "shared/base/async/clock.hpp"
#include "shared/base/error.hpp"

#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace fl {

class ChildProcess {
 public:
  struct Options {
    std::string command;                                         // For /bin/sh -c.
    std::vector<std::pair<std::string, std::string>> variables;  // Added to our environment.
    std::filesystem::path folder = {};  // The folder it runs in; empty: this one.
    std::string name = "trainer";       // The log's name for it.
  };

  /// Starts the command. Its standard input is empty. What it prints goes into our log line by
  /// line, "NAME: LINE"; of a flood the log has the beginning and a count. Errors: `unavailable`
  /// (no memory, too many processes).
  [[nodiscard]] static Result<std::unique_ptr<ChildProcess>> start(const Options& options);
  /// Kills the group, if it runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// Waits until the command has ended, or until `until`. Returns whether it has ended.
  [[nodiscard]] bool wait(TimePoint until);
  [[nodiscard]] bool has_ended() { return wait(Clock::now()); }
  /// Whether it has ended with status 0.
  [[nodiscard]] bool has_succeeded() const { return status_ == 0; }
  /// When it last printed something, or was started.
  [[nodiscard]] TimePoint printed_at() const;
  /// Sends SIGTERM to the group, and SIGKILL after limits::trainer_grace. Returns when the command
  /// has ended.
  void end();
  /// How it ended, with the last lines that it printed: "exit status 1: FileNotFoundError: a.npz".
  [[nodiscard]] std::string ending() const;

 private:
  class Group;
  class Output;
  ChildProcess(std::unique_ptr<Group> group, pid_t pid, std::unique_ptr<Output> output);
  void kill_now();
  void reap(int options);

  std::unique_ptr<Group> group_;
  pid_t pid_;  // The command's process.
  std::unique_ptr<Output> output_;
  std::optional<int> status_;  // From waitpid(), once the command has ended.
};

}  // namespace fl
