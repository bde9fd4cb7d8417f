// SPDX-License-Identifier: Apache-2.0
// fl-bench: the time of a round without training, compared with the bare pair in the same run. It
// starts the real fl-server and fl-client programs as a user does, and reads the round's time from
// the history.
//
//   fl-bench [--json FILE] [--state DIR] [--repeat N] [CASE …]
//
// The cases are 2x1m, 8x10m, 32x1m, 8x50m, start, and keep: what --keep-updates costs a round.
#include "tests/bench/bare_pair.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sqlite3.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string_view>
#include <thread>

extern char** environ;

namespace {

namespace fs = std::filesystem;
using Seconds = std::chrono::duration<double>;

struct Case {
  std::string name;
  int clients;
  std::uint64_t parameters;
  double goal;         // Goal for the ratio to the bare pair.
  double memory_mb;    // Goal for the server's peak memory. 0: 3x the model + 128 MiB.
  std::string others;  // Other frameworks' figures, from the first issue of this project.
};

const std::vector<Case> cases{
    {"2x1m", 2, 1'000'000, 3.0, 0, "Flower 6.1 s, NVFlare 2.5 s"},
    {"8x10m", 8, 10'000'000, 1.5, 0, "Flower 17 s, 2.2 GB; NVFlare 4.1 s, 1.75 GB"},
    {"32x1m", 32, 1'000'000, 2.0, 0, "Flower 50 s"},
    {"8x50m", 8, 50'000'000, 1.5, 750, "Flower 105 s, NVFlare 24.5 s; 7-8 GB"},
};

class Process {
 public:
  Process(const std::vector<std::string>& arguments, const std::string& log) {
    std::vector<char*> argv;
    for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    if (::posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0)
      throw std::runtime_error("can't start " + arguments[0]);
    posix_spawn_file_actions_destroy(&actions);
  }
  Process(Process&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  Process& operator=(Process&&) = delete;
  ~Process() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  struct Ended {
    int code;
    std::uint64_t memory;  // The peak, in bytes.
    double processor;      // Seconds, of user and system.
  };
  Ended wait() {
    int status = 0;
    rusage usage{};
    ::wait4(std::exchange(pid_, -1), &status, 0, &usage);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1,
            static_cast<std::uint64_t>(usage.ru_maxrss) * 1024,
            seconds(usage.ru_utime) + seconds(usage.ru_stime)};
  }

 private:
  pid_t pid_ = -1;
};

std::string output_of(const std::string& command) {
  std::string out;
  FILE* pipe = ::popen(command.c_str(), "r");
  char block[4096];
  for (std::size_t n = 0; (n = std::fread(block, 1, sizeof block, pipe)) > 0;) out.append(block, n);
  if (::pclose(pipe) != 0) throw std::runtime_error("failed: " + command);
  while (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Programs {
  std::string server;
  std::string client;
};

void await_file(const fs::path& path) {
  const auto start = std::chrono::steady_clock::now();
  while (!fs::exists(path)) {
    if (Seconds(std::chrono::steady_clock::now() - start).count() > 60)
      throw std::runtime_error("no " + path.string() + " after 60 s");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

struct Measured {
  double round = 0;  // Median seconds of a round after the first.
  double pair = 0;
  double payload_overhead = 0;  // Bytes on the socket / payload bytes - 1.
  std::uint64_t memory = 0;
  double processor = 0;  // The server's seconds for a round, its start and end in them.
};

Measured run_case(const Case& one, const Programs& programs, const fs::path& state, int rounds,
                  const std::vector<std::string>& flags = {}) {
  fs::remove_all(state);
  fs::create_directories(state);
  const std::string server_state = (state / "server").string();
  const std::string log = (state / "log").string();
  std::vector<std::string> arguments{programs.server,
                                     "--state",
                                     server_state,
                                     "--listen",
                                     "127.0.0.1:0",
                                     "--admin",
                                     "off",
                                     "--ready-file",
                                     (state / "ready").string(),
                                     "--model",
                                     fmt::format("synthetic:{}", one.parameters),
                                     "--rounds",
                                     std::to_string(rounds),
                                     "--min-clients",
                                     std::to_string(one.clients),
                                     "--keep-checkpoints",
                                     "2",
                                     "--codec",
                                     "none"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  Process server(arguments, log);
  await_file(state / "ready");
  std::vector<Process> clients;
  for (int i = 0; i < one.clients; ++i) {
    const std::string name = fmt::format("bench-{}", i);
    const auto token = output_of(fmt::format("{} enroll --state {} --name {} 2>/dev/null",
                                             programs.server, server_state, name));
    clients.emplace_back(
        std::vector<std::string>{programs.client, "--state", (state / name).string(), "--join",
                                 token, "--threads", "1"},
        log);
  }
  const Process::Ended ended = server.wait();
  if (ended.code != 0)
    throw std::runtime_error(fmt::format("fl-server ended with {}; see {}", ended.code, log));
  for (auto& client : clients) client.wait();

  Measured measured;
  measured.memory = ended.memory;
  measured.processor = ended.processor / rounds;
  sqlite3* db = nullptr;
  sqlite3_open_v2((fs::path(server_state) / "history.sqlite").c_str(), &db, SQLITE_OPEN_READONLY,
                  nullptr);
  sqlite3_stmt* rows = nullptr;
  sqlite3_prepare_v2(
      db, "SELECT seconds, bytes_up, bytes_down FROM round_summary WHERE round > 1 ORDER BY round",
      -1, &rows, nullptr);
  std::vector<double> seconds;
  double bytes = 0;
  while (sqlite3_step(rows) == SQLITE_ROW) {
    seconds.push_back(sqlite3_column_double(rows, 0));
    bytes = sqlite3_column_double(rows, 1) + sqlite3_column_double(rows, 2);
  }
  sqlite3_finalize(rows);
  sqlite3_close(db);
  const double payload = 2.0 * 4 * static_cast<double>(one.parameters) * one.clients;
  measured.round = median(seconds);
  measured.payload_overhead = bytes / payload - 1;
  fs::remove_all(state);
  return measured;
}

/// Runs with and without --keep-updates in turn. Each is long enough that rounds go again.
void compare_kept(const Programs& programs, const fs::path& state, int turns, nlohmann::json& out) {
  constexpr int rounds = 15;
  for (const std::string_view name : {"2x1m", "8x10m"}) {
    const Case& one = *std::find_if(cases.begin(), cases.end(),
                                    [&](const Case& each) { return each.name == name; });
    std::vector<double> speeds[2], processor[2], ratios;  // Without and with it.
    for (int turn = 0; turn < turns; ++turn) {
      for (const bool is_kept : {false, true}) {
        const std::vector<std::string> flags{"--keep-updates", is_kept ? "3" : "none"};
        const Measured measured = run_case(one, programs, state, rounds, flags);
        speeds[is_kept].push_back(1 / measured.round);
        processor[is_kept].push_back(measured.processor);
      }
      ratios.push_back(speeds[1].back() / speeds[0].back());
    }
    fmt::print(
        "keep    {}: {:.2f} rounds/s without --keep-updates, {:.2f} with; ratios {:.2f}; the "
        "server's processor {:.0f} and {:.0f} ms a round\n",
        name, median(speeds[0]), median(speeds[1]), fmt::join(ratios, " "),
        1e3 * median(processor[0]), 1e3 * median(processor[1]));
    std::fflush(stdout);
    out.push_back({{"case", fmt::format("keep {}", name)},
                   {"rounds_per_second_without", speeds[0]},
                   {"rounds_per_second_with", speeds[1]},
                   {"processor_seconds_without", processor[0]},
                   {"processor_seconds_with", processor[1]},
                   {"ratios", ratios}});
  }
}

double start_seconds(const Programs& programs, const fs::path& state) {
  std::vector<double> all;
  for (int i = 0; i < 5; ++i) {
    fs::remove_all(state);
    fs::create_directories(state);
    const auto start = std::chrono::steady_clock::now();
    Process server({programs.server, "--state", (state / "s").string(), "--listen", "127.0.0.1:0",
                    "--admin", "off", "--ready-file", (state / "ready").string()},
                   (state / "log").string());
    await_file(state / "ready");
    all.push_back(Seconds(std::chrono::steady_clock::now() - start).count());
  }
  fs::remove_all(state);
  return median(all);
}

void compare_pair(const Case& one, const Programs& programs, const fs::path& state, int rounds,
                  nlohmann::json& out) {
  const auto bytes = one.parameters * 4 * static_cast<std::uint64_t>(one.clients);
  // Measure the pair before and after, so that a change of the machine's speed shows.
  const double before = fl::bench::bare_pair_seconds(bytes, bytes);
  auto measured = run_case(one, programs, state, rounds);
  const double after = fl::bench::bare_pair_seconds(bytes, bytes);
  measured.pair = (before + after) / 2;
  const double goal_mb = one.memory_mb > 0
                             ? one.memory_mb
                             : (3.0 * 4 * static_cast<double>(one.parameters) + (128 << 20)) / 1e6;
  fmt::print("{:<7} {:>9.3f} {:>9.3f} {:>7.2f} {:>6.1f}   {:>9.0f} {:>9.0f}   {:>7.3f}%   {}\n",
             one.name, measured.round, measured.pair, measured.round / measured.pair, one.goal,
             static_cast<double>(measured.memory) / 1e6, goal_mb, 100 * measured.payload_overhead,
             one.others);
  std::fflush(stdout);
  out.push_back({{"case", one.name},
                 {"round_seconds", measured.round},
                 {"pair_seconds", measured.pair},
                 {"pair_before", before},
                 {"pair_after", after},
                 {"ratio", measured.round / measured.pair},
                 {"ratio_goal", one.goal},
                 {"server_bytes", measured.memory},
                 {"wire_overhead", measured.payload_overhead}});
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Measures a round without training against a bare TLS WebSocket pair"};
  std::string json_file = "build/bench.json";
  std::string state = (fs::temp_directory_path() / fmt::format("fl-bench-{}", ::getpid())).string();
  std::vector<std::string> wanted;
  int repeat = 3;
  app.add_option("--json", json_file, "Also write the figures to this file")->capture_default_str();
  app.add_option("--state", state,
                 "Folder for the servers' and clients' state (its disk affects the result)");
  app.add_option("--repeat", repeat,
                 "Rounds measured for each case, besides the first one; of keep: turns");
  app.add_option("CASE", wanted, "2x1m 8x10m 32x1m 8x50m start keep; default: all but keep");
  CLI11_PARSE(app, argc, argv);
  const fs::path here = fs::canonical("/proc/self/exe").parent_path();
  const Programs programs{(here / "fl-server").string(), (here / "fl-client").string()};
  const auto is_wanted = [&](const std::string& name) {
    return wanted.empty() || std::find(wanted.begin(), wanted.end(), name) != wanted.end();
  };
  nlohmann::json out = nlohmann::json::array();
  try {
    fmt::print("{:<7} {:>9} {:>9} {:>7} {:>6}   {:>9} {:>9}   {:>8}   {}\n", "case", "round s",
               "pair s", "ratio", "goal", "server MB", "goal MB", "overhead",
               "others (their own machine's run)");
    for (const auto& one : cases) {
      if (!is_wanted(one.name)) continue;
      compare_pair(one, programs, state, repeat + 1, out);
    }
    if (is_wanted("start")) {
      const double start = start_seconds(programs, state);
      fmt::print("start   {:.0f} ms from exec to listening, a new state (goal 100 ms)\n",
                 1e3 * start);
      out.push_back({{"case", "start"}, {"seconds", start}, {"goal_seconds", 0.1}});
    }
    if (!wanted.empty() && is_wanted("keep")) compare_kept(programs, state, repeat, out);
    if (!(std::ofstream(json_file) << out.dump(2) << "\n"))
      fmt::print(stderr, "can't write {}\n", json_file);
  } catch (const std::exception& error) {
    std::cerr << "fl-bench: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
