// SPDX-License-Identifier: Apache-2.0
#include "shared/base/state_lock.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <linux/magic.h>
#include <pwd.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <array>
#include <atomic>
#include <cerrno>
#include <system_error>
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

std::atomic<bool> accepts_fixed = false;

/// Whether a new file in the folder gets another owner or wider rights than it is made with.
bool gives_other_modes(const std::filesystem::path& folder) {
  std::string name = (folder / "modes-XXXXXX").string();
  const int file = ::mkostemp(name.data(), O_CLOEXEC);  // With mode 0600.
  if (file < 0) return false;
  struct stat made {};
  const bool is_other = ::fstat(file, &made) == 0 &&
                        ((made.st_mode & (S_IRWXG | S_IRWXO)) != 0 || made.st_uid != ::geteuid());
  ::close(file);
  ::unlink(name.c_str());
  return is_other;
}

/// Not every file system can lock a folder: NFS wants a descriptor for writing. Then only the lock
/// file is locked.
bool cannot_be_locked(int reason) {
  return reason == EBADF || reason == EINVAL || reason == ENOLCK || reason == EOPNOTSUPP;
}

/// Looks at the folder, or at the nearest one above it that is there.
Result<void> expect_disk(const std::filesystem::path& folder) {
  std::error_code none;
  auto found = std::filesystem::absolute(folder, none);
  struct statfs system {};
  while (::statfs(found.c_str(), &system) != 0 && found.has_relative_path())
    found = found.parent_path();
  if (system.f_type != PROC_SUPER_MAGIC && system.f_type != SYSFS_MAGIC) return {};
  return Error(Errc::conflict,
               fmt::format("{} is no place for files: the kernel shows itself there. "
                           "Choose a --state on a disk",
                           folder.string()));
}

}  // namespace

Result<void> make_state_folder(Files& files, const std::filesystem::path& folder) {
  FL_CHECK(expect_disk(folder));
  return files.make_folder(folder);
}

Result<void> check_state_folder(const std::filesystem::path& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) return errno_error(folder.string());
  if (!S_ISDIR(status.st_mode)) {
    return Error(Errc::invalid_input,
                 fmt::format("{} is not a folder: choose another --state", folder.string()));
  }
  FL_CHECK(expect_disk(folder));
  const StateFolder found{.path = folder,
                          .mode = status.st_mode & 07777U,
                          .owner = status.st_uid,
                          .user = ::geteuid(),
                          .has_fixed_modes = false,
                          .accepts_fixed_modes = accepts_fixed};
  if (judge_state_folder(found)) return {};
  StateFolder looked_at = found;
  looked_at.has_fixed_modes = gives_other_modes(folder);
  return judge_state_folder(looked_at);
}

Result<void> judge_state_folder(const StateFolder& folder) {
  constexpr mode_t too_wide = S_IWGRP | S_IRWXO;
  const bool is_others = folder.owner != folder.user;
  const bool is_wide = (folder.mode & too_wide) != 0;
  if (!is_others && !is_wide) return {};
  const std::string path = folder.path.string();
  if (folder.has_fixed_modes) {
    if (folder.accepts_fixed_modes) return {};
    return Error(
        Errc::conflict,
        fmt::format("{} may hold keys, and its file system shows the same owner and rights (mode "
                    "{:o}) for all files, as CIFS and WSL's drives do: chmod does not help. Choose "
                    "a --state on a disk of Linux, mount it with dir_mode=0700,file_mode=0600 and "
                    "your uid, or, if nobody else can reach it, add --accept-fixed-modes",
                    path, folder.mode));
  }
  if (is_others) {
    return Error(Errc::conflict,
                 fmt::format("{} belongs to the user {}, and this program runs as {}: run it as "
                             "that user (sudo -u), change the owner (chown -R), or choose another "
                             "--state",
                             path, name_of(folder.owner), name_of(folder.user)));
  }
  return Error(
      Errc::conflict,
      fmt::format("other users may use {} (mode {:o}), which may hold keys: 'chmod 700 {}' "
                  "makes it private. If others could write to it, they may have changed "
                  "its files",
                  path, folder.mode, path));
}

void accept_fixed_modes() { accepts_fixed = true; }

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
