// SPDX-License-Identifier: Apache-2.0
// Runs SQLite on any fl::Files, so that the real Store can use a disk in memory that crashes and
// fails on demand. There are no locks and no shared memory: open the database with
// locking_mode=EXCLUSIVE. The time is that of Clock, or advances by one second whenever it is read;
// random numbers come from a fixed seed. So the same calls at the same times give the same bytes.
// One thread at a time.
//
// As in SQLite's own Unix VFS, the first sync of a new journal or WAL also syncs its folder.
#pragma once

#include "shared/base/io/file.hpp"

#include <random>
#include <string>

#include <sqlite3.h>

namespace fl::test {

class SqliteFilesVfs {
 public:
  /// Registers the VFS under `name`, which must be new. `files` must outlive this object, and this
  /// object every connection that uses it.
  enum class Time { steps, clock };
  SqliteFilesVfs(std::string name, Files& files, Time time = Time::steps);
  ~SqliteFilesVfs();
  SqliteFilesVfs(const SqliteFilesVfs&) = delete;
  SqliteFilesVfs& operator=(const SqliteFilesVfs&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  struct Calls;  // The C functions that SQLite calls.

  std::string name_;
  Files& files_;
  sqlite3_vfs vfs_{};
  std::mt19937_64 random_{1};
  const Time time_;
  std::int64_t now_ms_;  // Of Time::steps.
};

}  // namespace fl::test
