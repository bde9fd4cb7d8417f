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

namespace fl {

namespace {

/// A user's name, or its number where it has none.
std::string name_of(uid_t user) {
  std::array<char, 4096> memory{};
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(user, &entry, memory.data(), memory.size(), &found) == 0 && found != nullptr)
    return fmt::format("'{}'", entry.pw_name);
  return fmt::format("number {}", user);
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
  int fd = ::open("/dev/null", O_RDWR);  // The lowest number that is free.
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR);
  if (fd > STDERR_FILENO) ::close(fd);
}

Result<StateLock> StateLock::take(const std::filesystem::path& folder) {
  FL_CHECK(check_state_folder(folder));
  const auto path = folder / "lock";
  StateLock lock(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (lock.fd_ < 0) return errno_error(path.string());
  if (::flock(lock.fd_, LOCK_EX | LOCK_NB) != 0) return why_not_locked(errno, folder);
  return lock;
}

Error why_not_locked(int reason, const std::filesystem::path& folder) {
  if (reason == EWOULDBLOCK) {
    return {Errc::conflict, fmt::format("another process uses {}: stop it, or choose another "
                                        "--state",
                                        folder.string())};
  }
  errno = reason;
  const Error error = errno_error(fmt::format("can't lock {}", (folder / "lock").string()));
  return {error.code(), error.message() +
                            ". Choose a --state on a disk of this machine, or on a "
                            "file system whose locks work"};
}

StateLock::~StateLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace fl
