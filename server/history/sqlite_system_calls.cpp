// SPDX-License-Identifier: Apache-2.0
#include "server/history/sqlite_system_calls.hpp"

#include "shared/base/async/mutex.hpp"
#include "shared/base/io/written_mappings.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/types.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <utility>

#include <sqlite3.h>

namespace fl::server {

namespace {

thread_local int failed_with = 0;

/// One of SQLite's system calls, which `replacement` calls in turn.
template <class Function>
struct SystemCall {
  const char* name;
  std::atomic<Function*> before = nullptr;

  void replace(sqlite3_vfs& vfs, Function* replacement) {
    const auto now = vfs.xGetSystemCall(&vfs, name);
    // The name of a call that this build of SQLite does without has no function.
    if (now == nullptr || now == reinterpret_cast<sqlite3_syscall_ptr>(replacement)) return;
    before = reinterpret_cast<Function*>(now);
    vfs.xSetSystemCall(&vfs, name, reinterpret_cast<sqlite3_syscall_ptr>(replacement));
  }
};

using Open = int(const char*, int, int);
using Write = ssize_t(int, const void*, std::size_t);
using WriteAt = ssize_t(int, const void*, std::size_t, off_t);
using Truncate = int(int, off_t);
using Map = void*(void*, std::size_t, int, int, int, off_t);
using Unmap = int(void*, std::size_t);

SystemCall<Open> open_call{"open"};
SystemCall<Write> write_call{"write"};
SystemCall<WriteAt> pwrite_call{"pwrite"};
SystemCall<WriteAt> pwrite64_call{"pwrite64"};
SystemCall<Truncate> truncate_call{"ftruncate"};
SystemCall<Map> map_call{"mmap"};
SystemCall<Unmap> unmap_call{"munmap"};

/// Keeps the errno of a call that has failed.
template <class Number>
Number noted(Number result) {
  if (result < 0) failed_with = errno;
  return result;
}

int open_and_note(const char* path, int flags, int mode) {
  const int file = open_call.before.load()(path, flags, mode);
  return (flags & O_CREAT) != 0 ? noted(file) : file;
}
ssize_t write_and_note(int file, const void* bytes, std::size_t count) {
  return noted(write_call.before.load()(file, bytes, count));
}
ssize_t pwrite_and_note(int file, const void* bytes, std::size_t count, off_t at) {
  return noted(pwrite_call.before.load()(file, bytes, count, at));
}
ssize_t pwrite64_and_note(int file, const void* bytes, std::size_t count, off_t at) {
  return noted(pwrite64_call.before.load()(file, bytes, count, at));
}
int truncate_and_note(int file, off_t bytes) {
  return noted(truncate_call.before.load()(file, bytes));
}

void* map_and_watch(void* hint, std::size_t bytes, int protection, int flags, int file, off_t at) {
  void* const mapped = map_call.before.load()(hint, bytes, protection, flags, file, at);
  if (mapped != MAP_FAILED && (protection & PROT_WRITE) != 0) watch_written_mapping(mapped, bytes);
  return mapped;
}
int unmap_and_forget(void* mapped, std::size_t bytes) {
  forget_written_mapping(mapped);
  return unmap_call.before.load()(mapped, bytes);
}

Mutex replacing;

}  // namespace

void watch_sqlite_system_calls() {
  sqlite3_initialize();
  sqlite3_vfs* const vfs = sqlite3_vfs_find("unix");
  if (vfs == nullptr || vfs->iVersion < 3) return;
  const MutexLock lock(replacing);
  open_call.replace(*vfs, open_and_note);
  write_call.replace(*vfs, write_and_note);
  pwrite_call.replace(*vfs, pwrite_and_note);
  pwrite64_call.replace(*vfs, pwrite64_and_note);
  truncate_call.replace(*vfs, truncate_and_note);
  map_call.replace(*vfs, map_and_watch);
  unmap_call.replace(*vfs, unmap_and_forget);
}

int take_sqlite_errno() { return std::exchange(failed_with, 0); }

}  // namespace fl::server
