// The one door to the disk for everything that must survive a crash: the spool, the checkpoints,
// the client's state and, through a VFS, SQLite. Posix in production (posix_files()); in tests a
// disk in memory that fails on demand and forgets what was not synced
// (tests/support/mem_files.hpp).
//
// Any thread; one File is used by one thread at a time, except read_at and write_at on disjoint
// ranges, which may run together. Errors: no_space (try again later), not_found, io. A sync that
// failed is never retried: the kernel may have dropped the dirty pages, so what the file holds is
// unknown. The owner stops and restarts from the last good state.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace fl {

class File {
 public:
  virtual ~File() = default;

  /// Fills `out` from `offset`; returns how many bytes there were (fewer only at the file's end).
  [[nodiscard]] virtual Result<std::size_t> read_at(std::uint64_t offset, MutableBytes out) = 0;
  /// Writes all of `bytes`, growing the file as needed.
  [[nodiscard]] virtual Result<void> write_at(std::uint64_t offset, Bytes bytes) = 0;
  [[nodiscard]] virtual Result<void> truncate(std::uint64_t bytes) = 0;
  [[nodiscard]] virtual Result<std::uint64_t> size() = 0;
  /// Contents and size are on stable storage when this returns (fdatasync). A file just made also
  /// needs Files::sync_folder.
  [[nodiscard]] virtual Result<void> sync() = 0;
  /// Begin writing [offset, offset + bytes) to the disk, without waiting. A hint; never fails.
  virtual void start_writeback(std::uint64_t offset, std::uint64_t bytes) = 0;
  /// These bytes where they lie, for a file that is in memory, until it is written to or closed;
  /// empty for all others, and past the end.
  [[nodiscard]] virtual Bytes view(std::uint64_t, std::uint64_t) { return {}; }

  /// read_at that must fill `out`: a short file is `corrupt`.
  [[nodiscard]] Result<void> read_exactly(std::uint64_t offset, MutableBytes out);
};

/// Sends to the disk what an appending writer has written, a few MiB at a time, so that the disk
/// works while the line does and the sync at the end has little left to wait for.
class Writeback {
 public:
  explicit Writeback(std::uint64_t from = 0) : from_(from) {}
  /// All before `end` is written (write_at).
  void reached(File& file, std::uint64_t end) {
    if (end < from_ + step_bytes) return;
    file.start_writeback(from_, end - from_);
    from_ = end;
  }

 private:
  static constexpr std::uint64_t step_bytes = 8 << 20;
  std::uint64_t from_;
};

enum class OpenMode {
  read,      // The file must exist.
  update,    // Read and write; the file must exist.
  create,    // Read and write; made when missing, contents kept.
  truncate,  // Read and write; made when missing, contents dropped.
};

class Files {
 public:
  virtual ~Files() = default;

  [[nodiscard]] virtual Result<std::unique_ptr<File>> open(const std::filesystem::path& path,
                                                           OpenMode mode) = 0;
  /// Atomically, replacing what is there. Durable after sync_folder.
  [[nodiscard]] virtual Result<void> rename(const std::filesystem::path& from,
                                            const std::filesystem::path& to) = 0;
  /// A file that isn't there is no error.
  [[nodiscard]] virtual Result<void> remove(const std::filesystem::path& path) = 0;
  [[nodiscard]] virtual bool exists(const std::filesystem::path& path) = 0;
  /// Names (not paths) of the files in a folder, sorted; a missing folder is not_found.
  [[nodiscard]] virtual Result<std::vector<std::string>> list(
      const std::filesystem::path& folder) = 0;
  /// With its parents, owner-only (0700). An existing folder is no error.
  [[nodiscard]] virtual Result<void> make_folder(const std::filesystem::path& folder) = 0;
  /// Makes creations, renames and removals in the folder durable.
  [[nodiscard]] virtual Result<void> sync_folder(const std::filesystem::path& folder) = 0;

  /// Whole small files. write_atomically writes PATH.tmp, syncs it, renames it and syncs the
  /// folder: after a crash the file holds all of the old or all of the new bytes.
  [[nodiscard]] Result<std::string> read_all(const std::filesystem::path& path,
                                             std::uint64_t bytes_max = 64 << 20);
  [[nodiscard]] Result<void> write_atomically(const std::filesystem::path& path, Bytes bytes);
};

/// The operating system's files. New files are 0600. One object for the process.
[[nodiscard]] Files& posix_files();

}  // namespace fl
