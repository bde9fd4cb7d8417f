// SPDX-License-Identifier: Apache-2.0
#include "shared/base/state_lock.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <utility>

namespace fl {

namespace {

/// The user's name, or its number if it has no name.
std::string name_of(uid_t user) {
  std::array<char, 4096> memory{};
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(user, &entry, memory.data(), memory.size(), &found) == 0 && found != nullptr)
    return fmt::format("'{}'", entry.pw_name);
  return fmt::format("number {}", user);
}

/// Not every file system can lock a folder: NFS wants a descriptor for writing. Then only the lock
/// file is locked.
bool cannot_be_locked(int reason) {
  return reason == EBADF || reason == EINVAL || reason == ENOLCK || reason == EOPNOTSUPP;
}

}  // namespace

Result<void> check_state_folder(const std::filesystem::path& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) return errno_error(folder.string());
  if (!S_ISDIR(status.st_mode)) {
    return Error(Errc::invalid_input,
                 fmt::format("{} is not a folder: choose another --state", folder.string()));
  }
  if (status.st_uid != ::geteuid()) {
    return Error(Errc::conflict,
                 fmt::format("{} belongs to the user {}, and this program runs as {}: run it as "
                             "that user (sudo -u), change the owner (chown -R), or choose another "
                             "--state",
                             folder.string(), name_of(status.st_uid), name_of(::geteuid())));
  }
  constexpr mode_t too_wide = S_IWGRP | S_IRWXO;
  if ((status.st_mode & too_wide) != 0) {
    return Error(
        Errc::conflict,
        fmt::format("other users may use {} (mode {:o}), which may hold keys: 'chmod 700 {}' "
                    "makes it private. If others could write to it, they may have changed "
                    "its files",
                    folder.string(), status.st_mode & 07777U, folder.string()));
  }
  return {};
}

void keep_files_private() {
  ::umask(S_IRWXG | S_IRWXO);
  int fd = ::open("/dev/null", O_RDWR);  // open() takes the lowest free number.
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR);
  if (fd > STDERR_FILENO) ::close(fd);
}

Result<StateLock> StateLock::take(const std::filesystem::path& folder) {
  FL_CHECK(check_state_folder(folder));
  StateLock lock;
  lock.folder_fd_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock.folder_fd_ < 0) return errno_error(folder.string());
  if (::flock(lock.folder_fd_, LOCK_EX | LOCK_NB) != 0 && !cannot_be_locked(errno))
    return why_not_locked(errno, folder);
  const auto path = folder / "lock";
  lock.file_fd_ = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock.file_fd_ < 0) return errno_error(path.string());
  if (::flock(lock.file_fd_, LOCK_EX | LOCK_NB) != 0) return why_not_locked(errno, folder);
  FL_TRY(const bool is_there, still_names(path, lock.file_fd_));
  if (is_there) return lock;
  return Error(Errc::conflict,
               fmt::format("somebody removed or replaced {} just now, which keeps two processes "
                           "from using one state: leave that file alone, and start again",
                           path.string()));
}

Result<bool> still_names(const std::filesystem::path& path, int fd) {
  struct stat open {};
  struct stat named {};
  if (::fstat(fd, &open) != 0) return errno_error(path.string());
  if (::lstat(path.c_str(), &named) != 0) {
    if (errno == ENOENT) return false;
    return errno_error(path.string());
  }
  return open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

Error why_not_locked(int reason, const std::filesystem::path& folder) {
  if (reason == EWOULDBLOCK) {
    return {Errc::conflict,
            fmt::format("another process uses {}: stop it, or choose another --state. Its lock is "
                        "on the folder itself, so removing the file 'lock' does not help",
                        folder.string())};
  }
  errno = reason;
  const Error error = errno_error(fmt::format("can't lock {}", (folder / "lock").string()));
  return {error.code(), error.message() +
                            ". Choose a --state on a disk of this machine, or on a "
                            "file system whose locks work"};
}

StateLock::StateLock(StateLock&& other) noexcept
    : folder_fd_(std::exchange(other.folder_fd_, -1)),
      file_fd_(std::exchange(other.file_fd_, -1)) {}

StateLock::~StateLock() {
  if (file_fd_ >= 0) ::close(file_fd_);
  if (folder_fd_ >= 0) ::close(folder_fd_);
}

}  // namespace fl
