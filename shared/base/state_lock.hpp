// SPDX-License-Identifier: Apache-2.0
// The lock by which two processes never use one state folder at the same time: on the folder
// itself, which nobody removes beneath a process by mistake, and on the file STATE/lock, which is
// all that programs of before know, and all that some file systems can lock. Server, client and
// fl-sim take both at start-up and hold them for the life of this object. The operating system
// releases them when the process ends, however it ends. And what such a folder must be: it has
// keys, and whoever may write to it decides what the program believes.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"

#include <sys/types.h>

#include <filesystem>

namespace fl {

/// Makes the folder if it is not there. Errors: conflict for a place where only the kernel makes
/// files
/// (/proc, /sys); those of Files::make_folder().
[[nodiscard]] Result<void> make_state_folder(Files& files, const std::filesystem::path& folder);

/// Checks that the folder is on a disk and belongs to the user of this process, that nobody else
/// may write to it, and that only its group may read it. `conflict`: one of these is not true; the
/// message says what to do.
[[nodiscard]] Result<void> check_state_folder(const std::filesystem::path& folder);

/// What check_state_folder() judges by.
struct StateFolder {
  std::filesystem::path path;
  mode_t mode = 0;
  uid_t owner = 0;
  uid_t user = 0;  // The user that this process runs as.
  /// New files get another owner or wider rights than they are made with, as on CIFS and on WSL's
  /// drives: the file system has fixed ones for all of its files.
  bool has_fixed_modes = false;
  bool accepts_fixed_modes = false;  // The user says that nobody else can reach the file system.
};
[[nodiscard]] Result<void> judge_state_folder(const StateFolder& folder);

/// From now on this process takes state folders whose file systems have fixed modes
/// (--accept-fixed-modes). Call it at the start of a program.
void accept_fixed_modes();

/// Lets only this user read and write the files that this process creates from now on. If standard
/// input, output or error is closed, opens /dev/null in its place: otherwise a file would get its
/// number, and the log would be written into that file. Call it at the start of a program that has
/// secrets.
void keep_files_private();

class StateLock {
 public:
  /// Checks the folder and takes the lock without waiting. The folder must exist. `conflict`: the
  /// check fails, another process holds the lock, or the lock file was removed meanwhile. Other
  /// errors: those of why_not_locked().
  static Result<StateLock> take(const std::filesystem::path& folder);
  StateLock(StateLock&& other) noexcept;
  StateLock& operator=(StateLock&&) = delete;
  ~StateLock();

 private:
  StateLock() = default;
  int folder_fd_ = -1;
  int file_fd_ = -1;
};

/// Whether `path` still names the file that is open as `fd`. Somebody who removes a lock file
/// leaves its holder with a file that has no name, and the next process makes another. Errors: io.
[[nodiscard]] Result<bool> still_names(const std::filesystem::path& path, int fd);

/// Why flock() failed with this errno. `conflict`: another process holds the lock.
[[nodiscard]] Error why_not_locked(int reason, const std::filesystem::path& folder);

}  // namespace fl
