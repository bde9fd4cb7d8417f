// SPDX-License-Identifier: Apache-2.0
#include "client/learn/process/child_process.hpp"

#include "client/learn/process/socket_line.hpp"
#include "shared/base/async/mutex.hpp"
#include "shared/base/async/stop_signals.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/line_limit.hpp"
#include "shared/base/log.hpp"
#include "shared/base/write_signals.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <string_view>
#include <thread>

// POSIX leaves its declaration to the program.
extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace fl {

namespace {

constexpr auto look = std::chrono::milliseconds(20);  // Between two looks at a running command.
constexpr int files_max = 1 << 16;  // The child closes all files up to this number.

/// The watcher of a group. It reads the command's process id, which the command's process writes
/// itself before it becomes the command, then waits for the end of the pipe,
/// whose other end only this program has: then this program has ended, in whatever way. It kills
/// what the command has started in turn, in other groups too, and at last its own group. A process
/// is stopped before its children are listed, so that it can't start more meanwhile.
constexpr const char* watch = R"(
trap '' TERM INT HUP
read -r command
read -r nothing
end_tree() {
  kill -STOP "$1"
  for list in "/proc/$1/task/"*/children; do
    children=
    read -r children <"$list"
    for child in $children; do end_tree "$child"; done
  done
  kill -KILL "$1"
}
[ -z "$command" ] || end_tree "$command"
kill -KILL 0
)";

using Pipe = std::array<int, 2>;  // The end to read from, the end to write to.

struct Streams {
  int input;
  int output;  // Standard output and standard error.
};

/// Tells a new process which group it belongs to.
struct GroupLine {
  pid_t number = 0;  // 0: a new group.
  int pipe = -1;     // The watcher reads from it; -1: the process is the watcher.
};

/// Writes this process's number to the watcher's pipe, if there is one (-1: none).
void tell_watcher(int pipe) {
  if (pipe < 0) return;
  std::array<char, std::numeric_limits<pid_t>::digits10 + 2> text{};
  char* const end = std::to_chars(text.data(), text.data() + text.size() - 1, getpid()).ptr;
  *end = '\n';
  // The write fails only if the watcher is gone: Group::kill_all() needs no watcher.
  [[maybe_unused]] const ssize_t sent =
      write(pipe, text.data(), static_cast<std::size_t>(end + 1 - text.data()));
}

/// Turns a child into a command of the group, after fork(); group 0: a new one. It calls only what
/// POSIX allows there in a program with threads.
[[noreturn]] void become(const char* const* arguments, char** variables, const char* folder,
                         const Streams& streams, const GroupLine& group, pid_t parent) {
  setpgid(0, group.number);
  // Before the command can start anything in another group, which only its tree leads to.
  tell_watcher(group.pipe);
  // From here on the watcher ends the child with this program. This program may have ended before.
  if (getppid() != parent) _exit(127);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  restore_write_signals();
  dup2(streams.input, STDIN_FILENO);
  dup2(streams.output, STDOUT_FILENO);
  dup2(streams.output, STDERR_FILENO);
  if (close_range(STDERR_FILENO + 1, ~0U, 0) != 0) {
    for (int file = STDERR_FILENO + 1; file < files_max; ++file) close(file);
  }
  if (*folder != '\0' && chdir(folder) != 0) _exit(127);
  execve("/bin/sh", const_cast<char* const*>(arguments), variables);
  _exit(127);
}

/// Starts /bin/sh with these arguments; -1 with errno.
pid_t start_shell(const std::array<const char*, 4>& arguments, char** variables, const char* folder,
                  const Streams& streams, const GroupLine& group) {
  const pid_t self = getpid();
  const pid_t pid = fork();
  if (pid == 0) become(arguments.data(), variables, folder, streams, group, self);
  if (pid > 0) setpgid(pid, group.number);  // The child does this, too: either may be first.
  return pid;
}

/// Calls waitpid() again when a signal interrupts it.
pid_t wait_for(pid_t pid, int* status, int options) {
  pid_t got = 0;
  do {
    got = waitpid(pid, status, options);
  } while (got < 0 && errno == EINTR);
  return got;
}

}  // namespace

/// Reads what the command prints, in a thread of its own, so that the command never waits for us.
class ChildProcess::Output {
 public:
  /// `bell` is an eventfd, by which the thread is told to end.
  Output(Descriptor file, Descriptor bell, std::string name)
      : file_(std::move(file)),
        bell_(std::move(bell)),
        name_(std::move(name)),
        thread_([this](std::stop_token stop) { run(stop); }) {}
  ~Output() {
    thread_.request_stop();
    eventfd_write(bell_.number(), 1);
    thread_.join();
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  [[nodiscard]] std::string last_lines() {
    const MutexLock lock(mutex_);
    return fmt::format("{}", fmt::join(last_, " | "));
  }
  [[nodiscard]] TimePoint last_at() const { return last_at_.load(); }
  /// Waits until all has been read, but not long: another process may still have the pipe.
  void finish() {
    const TimePoint until = Clock::now() + limits::trainer_output_wait;
    const MutexLock lock(mutex_);
    while (!is_over_ && Clock::now() < until) ended_.wait_until(mutex_, until);
  }

 private:
  void run(const std::stop_token& stop) {
    constexpr auto wait = std::chrono::milliseconds(limits::lines_look);
    TimePoint look_at = Clock::now() + wait;
    std::array<char, 64 << 10> room{};
    while (!stop.stop_requested()) {
      std::array<pollfd, 2> ready{pollfd{.fd = file_.number(), .events = POLLIN, .revents = 0},
                                  pollfd{.fd = bell_.number(), .events = POLLIN, .revents = 0}};
      const int found = poll(ready.data(), ready.size(), static_cast<int>(wait.count()));
      if (Clock::now() >= look_at) {
        tell_left_out();
        look_at = Clock::now() + wait;
      }
      if (found <= 0 || ready[0].revents == 0) continue;
      const ssize_t got = read(file_.number(), room.data(), room.size());
      if (got <= 0) break;
      last_at_ = Clock::now();
      take(std::string_view(room.data(), static_cast<std::size_t>(got)));
    }
    if (!line_.empty()) end_line();
    tell_left_out();
    const MutexLock lock(mutex_);
    is_over_ = true;
    ended_.notify_all();
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
    const MutexLock lock(mutex_);
    last_.push_back(std::exchange(line_, {}));
    if (last_.size() > limits::trainer_last_lines) last_.pop_front();
  }

  void tell_left_out() {
    for (const auto& left_out : lines_.take_left_out()) log_info("{}", to_string(left_out));
  }

  const Descriptor file_;
  const Descriptor bell_;
  std::string name_;
  std::atomic<TimePoint> last_at_ = Clock::now();
  std::string line_;  // Only the thread uses it.
  LineLimit lines_{{.lines_max = limits::trainer_lines_max, .window = limits::lines_window}};
  Mutex mutex_;
  Condition ended_;
  std::deque<std::string> last_ FL_GUARDED_BY(mutex_);
  bool is_over_ FL_GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

/// The process group of a command. The watcher leads it, so no other group gets the group's number
/// before the watcher is reaped.
class ChildProcess::Group {
 public:
  Group() = default;
  ~Group() {
    if (pid_ > 0) {
      kill_all();
      wait_for(pid_, nullptr, 0);
    } else if (line_ >= 0) {
      close(line_);
    }
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  Result<void> start(char** variables, int nothing) {
    Pipe pipe{};
    if (pipe2(pipe.data(), O_CLOEXEC) != 0) return errno_error("can't make a pipe");
    const std::array<const char*, 4> arguments{"sh", "-c", watch, nullptr};
    pid_ = start_shell(arguments, variables, "", {pipe[0], nothing}, {});
    const Error failure = errno_error("can't start a process");
    close(pipe[0]);
    line_ = pipe[1];
    if (pid_ < 0) return failure;
    return {};
  }
  void signal_all(int number) const { kill(-pid_, number); }
  /// Ends the group, and what its command has started in other groups if the command still runs.
  void kill_all() {
    if (line_ >= 0) close(std::exchange(line_, -1));
    const TimePoint until = Clock::now() + limits::watcher_wait;
    // The watcher is not reaped here: the group still has its number.
    while (Clock::now() < until && !has_ended()) std::this_thread::sleep_for(look);
    signal_all(SIGKILL);
  }
  /// Ends what is left of the group when its command has ended.
  void kill_rest() const { signal_all(SIGKILL); }
  [[nodiscard]] GroupLine for_command() const { return {.number = pid_, .pipe = line_}; }

 private:
  [[nodiscard]] bool has_ended() const {
    siginfo_t found{};
    return waitid(P_PID, static_cast<id_t>(pid_), &found, WEXITED | WNOHANG | WNOWAIT) != 0 ||
           found.si_pid == pid_;
  }

  pid_t pid_ = -1;  // The number of the watcher and of the group.
  int line_ = -1;   // The watcher waits for its end.
};

ChildProcess::ChildProcess(std::unique_ptr<Group> group, pid_t pid, std::unique_ptr<Output> output)
    : group_(std::move(group)), pid_(pid), output_(std::move(output)) {}

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
  const auto failed = [&options](const Error& error) {
    return Error(Errc::unavailable,
                 fmt::format("can't start {}: {}", options.name, error.message()));
  };

  const Descriptor nothing(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (nothing.number() < 0) return failed(errno_error("/dev/null"));
  Pipe pipe{};
  if (pipe2(pipe.data(), O_CLOEXEC) != 0) return failed(errno_error("can't make a pipe"));
  Descriptor output(pipe[0]);
  const Descriptor input(pipe[1]);
  Descriptor bell(eventfd(0, EFD_CLOEXEC));
  if (bell.number() < 0) return failed(errno_error("can't make an eventfd"));
  auto group = std::make_unique<Group>();
  if (const auto started = group->start(pointers.data(), nothing.number()); !started)
    return failed(started.error());
  const pid_t pid = start_shell(arguments, pointers.data(), folder.c_str(),
                                {nothing.number(), input.number()}, group->for_command());
  if (pid < 0) return failed(errno_error("can't start a process"));
  const WithoutStopSignals guard;
  return std::unique_ptr<ChildProcess>(
      new ChildProcess(std::move(group), pid,
                       std::make_unique<Output>(std::move(output), std::move(bell), options.name)));
}

ChildProcess::~ChildProcess() {
  if (!has_ended()) kill_now();
}

void ChildProcess::kill_now() {
  group_->kill_all();
  kill(pid_, SIGKILL);  // Also if the command has left its group.
  reap(0);
}

void ChildProcess::reap(int options) {
  int status = 0;
  if (wait_for(pid_, &status, options) != pid_) return;
  status_ = status;
  group_->kill_rest();  // It may have left processes behind.
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
  group_->signal_all(SIGTERM);
  if (!wait(Clock::now() + limits::trainer_grace)) kill_now();
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
