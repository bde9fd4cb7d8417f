// SPDX-License-Identifier: Apache-2.0
#include "server/history/history_changes.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"

#include <boost/asio/buffer.hpp>

#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace fl::server {

namespace {

/// Whether one of these events, as the kernel wrote them, is of the file of this name. So is a
/// queue that overflowed.
bool has_event_of(const char* events, std::size_t bytes, std::string_view name) {
  std::size_t at = 0;
  while (at + sizeof(inotify_event) <= bytes) {
    inotify_event event;
    std::memcpy(&event, events + at, sizeof event);
    const char* const of = events + at + sizeof event;  // Padded with zero bytes.
    if ((event.mask & IN_Q_OVERFLOW) != 0 || (event.len > 0 && name == of)) return true;
    at += sizeof event + event.len;
  }
  return false;
}

}  // namespace

HistoryChanges::HistoryChanges(net::any_io_executor strand, const std::filesystem::path& history)
    : name_(history.filename().string() + "-wal"),
      folder_(history.parent_path()),
      events_(strand),
      changed_(std::move(strand)) {}

void HistoryChanges::start() {
  const int file = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  // SQLite may make the file anew, so the folder is watched.
  is_watching_ = file >= 0 && ::inotify_add_watch(file, folder_.c_str(), IN_MODIFY) >= 0;
  if (!is_watching_) {
    log_info("the history can't be watched ({}): looking at it several times a second",
             std::strerror(errno));
    if (file >= 0) ::close(file);
    return;
  }
  events_.assign(file);
  net::co_spawn(events_.get_executor(), watch(), rethrow);
}

Awaitable<void> HistoryChanges::watch() {
  std::array<char, 4096> room;
  for (;;) {
    const auto [ec, bytes] = co_await events_.async_read_some(net::buffer(room), as_result);
    if (ec) break;
    if (!has_event_of(room.data(), bytes, name_)) continue;
    wake();
    co_await sleep_for(limits::history_pace);  // One call of wake() tells all changes until then.
  }
  is_watching_ = false;
}

Awaitable<void> HistoryChanges::wait(std::uint64_t& seen) {
  const Duration longest = is_watching_ ? limits::history_look : limits::history_pace;
  const TimePoint until = Clock::now() + longest;
  while (changes_ == seen && Clock::now() < until) co_await changed_.wait(until);
  seen = changes_;
}

void HistoryChanges::wake() {
  ++changes_;
  changed_.notify();
}

}  // namespace fl::server
