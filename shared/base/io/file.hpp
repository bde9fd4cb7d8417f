// SPDX-License-Identifier: Apache-2.0
// The interface to the disk for everything that must survive a crash: the spool, the checkpoints,
// the client's state and, through a VFS, SQLite. Programs use posix_files(). Tests use a disk in
// memory that fails on demand and forgets what was not synced (tests/support/mem_files.hpp).
//
// A Files object may be used from any thread. A File is used by one thread at a time, except that
// read_at and write_at on disjoint ranges may run at the same time. Errors: no_space (retry later),
// not_found, io. Never retry a failed sync: the kernel may have dropped the dirty pages, so the
// contents of the file are unknown. The owner stops, and restarts from the last good state.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/base/io/file_mapping.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fl {

class File {
 public:
  virtual ~File() = default;

  /// Reads from `offset` into `out`. Returns the number of bytes read, which is smaller than
  /// out.size() only at the end of the file.
  [[nodiscard]] virtual Result<std::size_t> read_at(std::uint64_t offset, MutableBytes out) = 0;
  /// Writes all of `bytes`, growing the file as needed.
  [[nodiscard]] virtual Result<void> write_at(std::uint64_t offset, Bytes bytes) = 0;
  /// Writes all parts, one behind the other.
  [[nodiscard]] virtual Result<void> write_parts_at(std::uint64_t offset,
                                                    std::span<const Bytes> parts);
  [[nodiscard]] virtual Result<void> truncate(std::uint64_t bytes) = 0;
  /// Makes the file at least so long and takes the room for it on the disk, where the file system
  /// can do that: later writes within it then find room. Errors: no_space.
  [[nodiscard]] virtual Result<void> reserve(std::uint64_t bytes);
  [[nodiscard]] virtual Result<std::uint64_t> size() = 0;
  /// Contents and size are on stable storage when this returns (fdatasync). A new file also needs
  /// Files::sync_folder.
  [[nodiscard]] virtual Result<void> sync() = 0;
  /// Begins to write [offset, offset + bytes) to the disk and does not wait. A hint; never fails.
  virtual void start_writeback(std::uint64_t offset, std::uint64_t bytes) = 0;
  /// For a file in memory: the bytes [offset, offset + bytes) themselves, valid until the file is
  /// written to or closed. Empty for all other files, and for a range past the end.
  [[nodiscard]] virtual Bytes view(std::uint64_t, std::uint64_t) { return {}; }

  /// Maps the first `bytes` bytes. Null for a file that can't be mapped: one in memory.
  [[nodiscard]] virtual Result<std::unique_ptr<FileMapping>> map(std::uint64_t) {
    return std::unique_ptr<FileMapping>();
  }

  /// Like read_at, but must fill `out`. If the file is too short, the error is `corrupt`.
  [[nodiscard]] Result<void> read_exactly(std::uint64_t offset, MutableBytes out);
};

/// For a writer that appends: starts the writeback of what was written, a few MiB at a time. So the
/// disk works at the same time as the network, and the final sync is short.
class Writeback {
 public:
  explicit Writeback(std::uint64_t from = 0) : from_(from) {}
  /// The writer calls this when everything before `end` has been written with write_at.
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
  read,      // Read only; the file must exist.
  update,    // Read and write; the file must exist.
  create,    // Read and write; creates a missing file, keeps the contents of an existing one.
  truncate,  // Read and write; creates a missing file, drops the contents of an existing one.
  fresh,     // Read and write; a new file that replaces one with that name. Follows no link.
};

class Files {
 public:
  virtual ~Files() = default;

  [[nodiscard]] virtual Result<std::unique_ptr<File>> open(const std::filesystem::path& path,
                                                           OpenMode mode) = 0;
  /// Renames atomically; replaces a file at `to`. Durable after sync_folder.
  [[nodiscard]] virtual Result<void> rename(const std::filesystem::path& from,
                                            const std::filesystem::path& to) = 0;
  /// Removes a file. A missing file is no error. Durable after sync_folder.
  [[nodiscard]] virtual Result<void> remove(const std::filesystem::path& path) = 0;
  /// Whether its files can be mapped.
  [[nodiscard]] virtual bool can_map() const { return false; }
  [[nodiscard]] virtual bool exists(const std::filesystem::path& path) = 0;
  /// Returns the names (not paths) of the regular files in a folder, sorted. A missing folder is
  /// not_found.
  [[nodiscard]] virtual Result<std::vector<std::string>> list(
      const std::filesystem::path& folder) = 0;
  /// Makes the folder and its parents, with mode 0700. An existing folder is no error.
  [[nodiscard]] virtual Result<void> make_folder(const std::filesystem::path& folder) = 0;
  /// Makes the creations, renames and removals in the folder durable.
  [[nodiscard]] virtual Result<void> sync_folder(const std::filesystem::path& folder) = 0;

  /// Reads a whole file. A file of more than `bytes_max` bytes is too_large.
  [[nodiscard]] Result<std::string> read_all(const std::filesystem::path& path,
                                             std::uint64_t bytes_max = 64 << 20);
  /// Replaces a file: makes a fresh PATH.tmp, lets `write` write it, syncs it, renames it and syncs
  /// the folder. After a crash the file holds all of the old or all of the new bytes. After an
  /// error it holds the old ones, unless only the folder could not be synced.
  using Write = std::function<Result<void>(File& fresh)>;
  [[nodiscard]] Result<void> replace(const std::filesystem::path& path, const Write& write);
  /// Replaces a file, as replace() does, by one with these bytes.
  [[nodiscard]] Result<void> write_atomically(const std::filesystem::path& path, Bytes bytes);
};

/// Returns an error if an open file does not lie on a disk: reading a FIFO or a device may wait for
/// ever. First open a file that others may have put there with O_NONBLOCK.
[[nodiscard]] Result<void> expect_regular(int descriptor, const std::filesystem::path& path);

/// The files of the operating system. They open only regular files, and never wait for one. New
/// files get mode 0600. The process has one such object.
[[nodiscard]] Files& posix_files();

}  // namespace fl
