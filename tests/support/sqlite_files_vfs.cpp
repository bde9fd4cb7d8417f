// SPDX-License-Identifier: Apache-2.0
#include "tests/support/sqlite_files_vfs.hpp"

#include "shared/base/async/clock.hpp"

#include <cmath>
#include <cstring>
#include <new>
#include <utility>

namespace fl::test {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t start_ms = 1'750'000'000'000;           // Unix time before the first read.
constexpr std::int64_t julian_epoch_ms = 210'866'760'000'000;  // Unix epoch in Julian milliseconds.

/// SQLite knows this object as an sqlite3_file, which is its first member.
struct OpenFile {
  sqlite3_file base{};
  std::unique_ptr<File> file;
  Files* files = nullptr;
  fs::path path;
  bool sync_folder_first = false;
  bool delete_on_close = false;
};

OpenFile& of(sqlite3_file* file) { return *reinterpret_cast<OpenFile*>(file); }

int code_of(const Error& error, int otherwise) {
  return error.code() == Errc::no_space ? SQLITE_FULL : otherwise;
}

template <class T>
int code_of(const Result<T>& result, int otherwise) {
  return result ? SQLITE_OK : code_of(result.error(), otherwise);
}

int close_file(sqlite3_file* base) {
  OpenFile& open = of(base);
  Result<void> removed;
  if (open.delete_on_close) removed = open.files->remove(open.path);
  open.~OpenFile();
  return code_of(removed, SQLITE_IOERR_DELETE);
}

int read_file(sqlite3_file* base, void* out, int count, sqlite3_int64 offset) {
  const MutableBytes bytes(static_cast<std::byte*>(out), static_cast<std::size_t>(count));
  const auto got = of(base).file->read_at(static_cast<std::uint64_t>(offset), bytes);
  if (!got) return SQLITE_IOERR_READ;
  if (*got == bytes.size()) return SQLITE_OK;
  std::memset(bytes.data() + *got, 0, bytes.size() - *got);
  return SQLITE_IOERR_SHORT_READ;
}

int write_file(sqlite3_file* base, const void* data, int count, sqlite3_int64 offset) {
  const Bytes bytes(static_cast<const std::byte*>(data), static_cast<std::size_t>(count));
  return code_of(of(base).file->write_at(static_cast<std::uint64_t>(offset), bytes),
                 SQLITE_IOERR_WRITE);
}

int truncate_file(sqlite3_file* base, sqlite3_int64 bytes) {
  return code_of(of(base).file->truncate(static_cast<std::uint64_t>(bytes)), SQLITE_IOERR_TRUNCATE);
}

int sync_file(sqlite3_file* base, int) {
  OpenFile& open = of(base);
  if (const auto synced = open.file->sync(); !synced) return code_of(synced, SQLITE_IOERR_FSYNC);
  if (!open.sync_folder_first) return SQLITE_OK;
  open.sync_folder_first = false;
  return code_of(open.files->sync_folder(open.path.parent_path()), SQLITE_IOERR_DIR_FSYNC);
}

int size_of_file(sqlite3_file* base, sqlite3_int64* bytes) {
  const auto size = of(base).file->size();
  if (!size) return SQLITE_IOERR_FSTAT;
  *bytes = static_cast<sqlite3_int64>(*size);
  return SQLITE_OK;
}

int ignore_lock(sqlite3_file*, int) { return SQLITE_OK; }

int nobody_locks(sqlite3_file*, int* locked) {
  *locked = 0;
  return SQLITE_OK;
}

int no_control(sqlite3_file*, int, void*) { return SQLITE_NOTFOUND; }
int sector_bytes(sqlite3_file*) { return 4096; }
// The default of the Unix VFS: a write damages no byte outside its range.
int device_traits(sqlite3_file*) { return SQLITE_IOCAP_POWERSAFE_OVERWRITE; }

sqlite3_io_methods make_io_methods() {
  sqlite3_io_methods methods{};
  methods.iVersion = 1;  // Without shared memory.
  methods.xClose = close_file;
  methods.xRead = read_file;
  methods.xWrite = write_file;
  methods.xTruncate = truncate_file;
  methods.xSync = sync_file;
  methods.xFileSize = size_of_file;
  methods.xLock = ignore_lock;
  methods.xUnlock = ignore_lock;
  methods.xCheckReservedLock = nobody_locks;
  methods.xFileControl = no_control;
  methods.xSectorSize = sector_bytes;
  methods.xDeviceCharacteristics = device_traits;
  return methods;
}

const sqlite3_io_methods io_methods = make_io_methods();

OpenMode mode_of(int flags) {
  if (flags & SQLITE_OPEN_CREATE) return OpenMode::create;
  return flags & SQLITE_OPEN_READWRITE ? OpenMode::update : OpenMode::read;
}

}  // namespace

struct SqliteFilesVfs::Calls {
  static SqliteFilesVfs& self(sqlite3_vfs* vfs) {
    return *static_cast<SqliteFilesVfs*>(vfs->pAppData);
  }

  static int open(sqlite3_vfs* vfs, const char* name, sqlite3_file* base, int flags, int* got) {
    base->pMethods = nullptr;  // Tells SQLite not to close the file if it did not open.
    Files& files = self(vfs).files_;
    const fs::path path =
        name != nullptr ? name : "/temporary-" + std::to_string(self(vfs).random_());
    const bool is_new = (flags & SQLITE_OPEN_CREATE) && !files.exists(path);
    auto file = files.open(path, mode_of(flags));
    if (!file) return code_of(file.error(), SQLITE_CANTOPEN);
    auto* open = new (base) OpenFile;
    open->file = std::move(*file);
    open->files = &files;
    open->path = path;
    open->sync_folder_first = is_new && (flags & (SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_WAL));
    open->delete_on_close = (flags & SQLITE_OPEN_DELETEONCLOSE) != 0;
    open->base.pMethods = &io_methods;
    if (got != nullptr) *got = flags;
    return SQLITE_OK;
  }

  static int remove(sqlite3_vfs* vfs, const char* name, int sync_folder) {
    Files& files = self(vfs).files_;
    if (!files.exists(name)) return SQLITE_IOERR_DELETE_NOENT;
    if (const auto removed = files.remove(name); !removed) return SQLITE_IOERR_DELETE;
    if (!sync_folder) return SQLITE_OK;
    return code_of(files.sync_folder(fs::path(name).parent_path()), SQLITE_IOERR_DIR_FSYNC);
  }

  static int access(sqlite3_vfs* vfs, const char* name, int, int* answer) {
    *answer = self(vfs).files_.exists(name) ? 1 : 0;
    return SQLITE_OK;
  }

  static int full_path(sqlite3_vfs*, const char* name, int bytes_max, char* out) {
    const std::string path = name[0] == '/' ? name : std::string("/") + name;
    if (path.size() + 1 > static_cast<std::size_t>(bytes_max)) return SQLITE_CANTOPEN;
    std::memcpy(out, path.c_str(), path.size() + 1);
    return SQLITE_OK;
  }

  static int randomness(sqlite3_vfs* vfs, int count, char* out) {
    for (int i = 0; i < count; ++i) out[i] = static_cast<char>(self(vfs).random_());
    return count;
  }

  static int sleep(sqlite3_vfs*, int microseconds) { return microseconds; }

  static int current_time_ms(sqlite3_vfs* vfs, sqlite3_int64* julian_ms) {
    const bool steps = self(vfs).time_ == Time::steps;
    *julian_ms = julian_epoch_ms +
                 (steps ? self(vfs).now_ms_ += 1000 : std::llround(Clock::unix_seconds() * 1000));
    return SQLITE_OK;
  }

  static int current_time(sqlite3_vfs* vfs, double* julian_days) {
    sqlite3_int64 ms = 0;
    current_time_ms(vfs, &ms);
    *julian_days = static_cast<double>(ms) / 86'400'000.0;
    return SQLITE_OK;
  }

  static int last_error(sqlite3_vfs*, int, char*) { return 0; }
};

SqliteFilesVfs::SqliteFilesVfs(std::string name, Files& files, Time time)
    : name_(std::move(name)), files_(files), time_(time), now_ms_(start_ms) {
  FL_ASSERT(sqlite3_vfs_find(name_.c_str()) == nullptr);
  vfs_.iVersion = 2;
  vfs_.szOsFile = sizeof(OpenFile);
  vfs_.mxPathname = 1024;
  vfs_.zName = name_.c_str();
  vfs_.pAppData = this;
  vfs_.xOpen = Calls::open;
  vfs_.xDelete = Calls::remove;
  vfs_.xAccess = Calls::access;
  vfs_.xFullPathname = Calls::full_path;
  vfs_.xRandomness = Calls::randomness;
  vfs_.xSleep = Calls::sleep;
  vfs_.xCurrentTime = Calls::current_time;
  vfs_.xGetLastError = Calls::last_error;
  vfs_.xCurrentTimeInt64 = Calls::current_time_ms;
  FL_ASSERT(sqlite3_vfs_register(&vfs_, 0) == SQLITE_OK);
  // SQLite seeds its one random generator (for the WAL's salts) from the default VFS, not from
  // this one.
  sqlite3_test_control(SQLITE_TESTCTRL_PRNG_SEED, 1, nullptr);
}

SqliteFilesVfs::~SqliteFilesVfs() { sqlite3_vfs_unregister(&vfs_); }

}  // namespace fl::test
