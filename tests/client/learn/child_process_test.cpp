// SPDX-License-Identifier: Apache-2.0
// What a command has started ends with it, or with the client that started it, whatever it does.
#include "client/learn/process/child_process.hpp"

#include "shared/base/async/clock.hpp"
#include "tests/client/learn/temporary_state.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace fl::test {
namespace {

namespace fs = std::filesystem;

/// The process ids that a command has written, one a line, once there are so many.
std::vector<pid_t> read_pids(const fs::path& path, std::size_t count) {
  std::vector<pid_t> pids;
  for (int i = 0; i < 1000 && pids.size() < count; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    pids.clear();
    std::ifstream file(path);
    for (pid_t pid = 0; file >> pid;) pids.push_back(pid);
  }
  REQUIRE(pids.size() == count);
  return pids;
}

/// Whether the process ends. One that nobody has waited for yet has ended too.
bool ends(pid_t pid) {
  for (int i = 0; i < 1000; ++i) {
    std::ifstream file(fmt::format("/proc/{}/stat", pid));
    std::string stat;
    if (!std::getline(file, stat)) return true;
    if (stat.at(stat.rfind(')') + 2) == 'Z') return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

/// Writes the process ids of itself, of a child, and of a child in a session of its own, none of
/// which ends by itself or by SIGTERM.
std::string stubborn_command(const fs::path& pids) {
  return fmt::format(
      "trap '' TERM; (echo $$ >> {0}; exec sleep 1000) & setsid sh -c "
      "'echo $$ >> {0}; exec sleep 1000' & sh -c 'echo $$ >> {0}; exec sleep 1000' & wait",
      pids.string());
}

TEST_CASE("a command and what it has started do not outlive a client that is killed") {
  const State state;
  const auto pids = state.path / "pids";
  const pid_t client = fork();
  if (client == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // A check below may end the test.
    const auto child =
        ChildProcess::start({.command = stubborn_command(pids), .variables = {}, .folder = {}});
    for (;;) pause();
  }
  const auto started = read_pids(pids, 3);
  kill(client, SIGKILL);
  waitpid(client, nullptr, 0);
  for (const pid_t pid : started) CHECK(ends(pid));
}

TEST_CASE("what a command has started ends with a command that is given up") {
  const State state;
  const auto pids = state.path / "pids";
  auto child =
      ChildProcess::start({.command = stubborn_command(pids), .variables = {}, .folder = {}})
          .value();
  const auto started = read_pids(pids, 3);
  child.reset();
  for (const pid_t pid : started) CHECK(ends(pid));
}

TEST_CASE("what a command leaves in its group ends with it, and its ending is told") {
  const State state;
  const auto pids = state.path / "pids";
  auto child =
      ChildProcess::start({.command = fmt::format("sh -c 'echo $$ > {}; exec sleep 1000' & "
                                                  "while [ ! -s {} ]; do sleep 0.01; done; "
                                                  "kill -USR1 $$",
                                                  pids.string(), pids.string()),
                           .variables = {},
                           .folder = {}})
          .value();
  REQUIRE(child->wait(Clock::now() + std::chrono::seconds(20)));
  CHECK(child->ending() == fmt::format("killed by signal {}", SIGUSR1));
  CHECK(ends(read_pids(pids, 1).front()));
}

}  // namespace
}  // namespace fl::test
