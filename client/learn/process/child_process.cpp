// SPDX-License-Identifier: Apache-2.0
#include "client/learn/process/child_process.hpp"

#include "shared/base/async/stop_signals.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/line_limit.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <string_view>
#include <thread>

// POSIX leaves its declaration to the program.
extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace fl {

namespace {

constexpr auto look = std::chrono::milliseconds(20);  // Between two looks at a running command.
constexpr int files_max = 1 << 16;  // More than this program has open; the child closes them.

using Pipe = std::array<int, 2>;  // The end to read from, the end to write to.

/// Turns the child into the command, after fork(). It calls only what POSIX allows there in a
/// program with threads.
[[noreturn]] void become(const char* const* arguments, char** variables, const char* folder,
                         int output, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // It has ended before the line above.
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  if (close_range(STDERR_FILENO + 1, ~0U, 0) != 0) {
    for (int file = STDERR_FILENO + 1; file < files_max; ++file) close(file);
  }
  if (*folder != '\0' && chdir(folder) != 0) _exit(127);
  execve("/bin/sh", const_cast<char* const*>(arguments), variables);
  _exit(127);
}

}  // namespace

/// Reads what the command prints, in a thread of its own, so that the command never waits for us.
class ChildProcess::Output {
 public:
  Output(int file, std::string name)
      : file_(file), name_(std::move(name)), thread_([this](std::stop_token stop) { run(stop); }) {}
  ~Output() {
    thread_.request_stop();
    thread_.join();
    close(file_);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  [[nodiscard]] std::string last_lines() {
    const std::lock_guard lock(mutex_);
    return fmt::format("{}", fmt::join(last_, " | "));
  }
  [[nodiscard]] TimePoint last_at() const { return last_at_.load(); }
  /// Waits until all has been read, but not long: another process may still have the pipe.
  void finish() {
    const TimePoint until = Clock::now() + limits::trainer_output_wait;
    while (Clock::now() < until) {
      {
        const std::lock_guard lock(mutex_);
        if (is_over_) return;
      }
      std::this_thread::sleep_for(look);
    }
  }

 private:
  void run(const std::stop_token& stop) {
    std::array<char, 64 << 10> room{};
    while (!stop.stop_requested()) {
      pollfd ready{.fd = file_, .events = POLLIN, .revents = 0};
      const int found = poll(&ready, 1, 100);
      if (found == 0) tell_left_out();
      if (found <= 0) continue;
      const ssize_t got = read(file_, room.data(), room.size());
      if (got <= 0) break;
      last_at_ = Clock::now();
      take(std::string_view(room.data(), static_cast<std::size_t>(got)));
    }
    if (!line_.empty()) end_line();
    tell_left_out();
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }

  void take(std::string_view text) {
    for (const char c : text) {
      // A progress bar ends its lines with a carriage return.
      if (c == '\n' || c == '\r') {
        if (!line_.empty()) end_line();
      } else if (line_.size() < limits::trainer_line_bytes_max) {
        line_ += c;
      }
    }
  }

  void end_line() {
    if (lines_.passes(name_)) log_info("{}: {}", name_, line_);
    const std::lock_guard lock(mutex_);
    last_.push_back(std::exchange(line_, {}));
    if (last_.size() > limits::trainer_last_lines) last_.pop_front();
  }

  void tell_left_out() {
    for (const auto& left_out : lines_.take_left_out()) log_info("{}", to_string(left_out));
  }

  int file_;
  std::string name_;
  std::atomic<TimePoint> last_at_ = Clock::now();
  std::string line_;  // The thread's.
  LineLimit lines_{{.lines_max = limits::trainer_lines_max, .window = limits::lines_window}};
  std::mutex mutex_;  // Guards those below.
  std::deque<std::string> last_;
  bool is_over_ = false;
  std::jthread thread_;
};

ChildProcess::ChildProcess(pid_t pid, std::unique_ptr<Output> output)
    : pid_(pid), output_(std::move(output)) {}

Result<std::unique_ptr<ChildProcess>> ChildProcess::start(const Options& options) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable)
    variables.emplace_back(*variable);
  for (const auto& added : options.variables) {
    const std::string begin = added.first + "=";
    std::erase_if(variables, [&](const std::string& other) { return other.starts_with(begin); });
    variables.push_back(begin + added.second);
  }
  std::vector<char*> pointers;
  for (auto& variable : variables) pointers.push_back(variable.data());
  pointers.push_back(nullptr);
  const std::string folder = options.folder.string();
  const std::array<const char*, 4> arguments{"sh", "-c", options.command.c_str(), nullptr};

  Pipe pipe{};
  if (pipe2(pipe.data(), O_CLOEXEC) != 0)
    return Error(Errc::unavailable, errno_error("can't make a pipe for " + options.name).message());
  const pid_t self = getpid();
  const pid_t pid = fork();
  if (pid == 0) become(arguments.data(), pointers.data(), folder.c_str(), pipe[1], self);
  const Error failure = errno_error("can't start " + options.name);
  close(pipe[1]);
  if (pid < 0) {
    close(pipe[0]);
    return Error(Errc::unavailable, failure.message());
  }
  setpgid(pid, pid);  // As the child does itself: whoever comes first.
  const WithoutStopSignals guard;
  return std::unique_ptr<ChildProcess>(
      new ChildProcess(pid, std::make_unique<Output>(pipe[0], options.name)));
}

ChildProcess::~ChildProcess() {
  if (!has_ended()) {
    kill(-pid_, SIGKILL);
    reap(0);
  }
}

void ChildProcess::reap(int options) {
  int status = 0;
  pid_t got = 0;
  do {
    got = waitpid(pid_, &status, options);
  } while (got < 0 && errno == EINTR);
  if (got != pid_) return;
  status_ = status;
  kill(-pid_, SIGKILL);  // It may have left processes behind.
  output_->finish();
}

bool ChildProcess::wait(TimePoint until) {
  for (;;) {
    if (!status_) reap(WNOHANG);
    if (status_) return true;
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(look);
  }
}

void ChildProcess::end() {
  if (has_ended()) return;
  kill(-pid_, SIGTERM);
  if (wait(Clock::now() + limits::trainer_grace)) return;
  kill(-pid_, SIGKILL);
  reap(0);
}

TimePoint ChildProcess::printed_at() const { return output_->last_at(); }

std::string ChildProcess::ending() const {
  FL_ASSERT(status_.has_value());
  const std::string how = WIFSIGNALED(*status_)
                              ? fmt::format("killed by signal {}", WTERMSIG(*status_))
                              : fmt::format("exit status {}", WEXITSTATUS(*status_));
  const std::string lines = output_->last_lines();
  return lines.empty() ? how : how + ": " + lines;
}

}  // namespace fl
