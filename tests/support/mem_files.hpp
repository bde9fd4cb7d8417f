// SPDX-License-Identifier: Apache-2.0
// A disk in memory that behaves like a real disk in the worst case, for tests of all code that uses
// fl::Files. Contents become durable only through File::sync, names only through
// Files::sync_folder. crash() is a power loss; after it, the object is the disk at the next boot.
// Changes that were not synced may survive in part: the seed decides for each unsynced 4 KiB page,
// truncation, creation, rename and removal whether it is kept or lost. New folders are durable at
// once. The same calls with the same seeds give the same disk.
//
// Any thread: one mutex guards everything. Files opened before a crash or a kill return `io` after
// it.
#pragma once

#include "shared/base/io/file.hpp"

#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>

namespace fl::test {

enum class Fault {
  io,         // The operation fails; a write has written its first half.
  sync_lost,  // A sync fails, and its bytes never reach the disk, although reads still see them.
              // Linux does this with dirty pages that it couldn't write.
};

class MemFiles final : public Files {
 public:
  static constexpr std::size_t page_bytes = 4096;
  static constexpr std::uint64_t no_limit = std::numeric_limits<std::uint64_t>::max();

  struct Operations {
    std::uint64_t all = 0;      // Every call that a fault can hit.
    std::uint64_t changes = 0;  // Operations that change the disk or make a change durable.
    std::uint64_t syncs = 0;    // Calls of File::sync.
  };

  // Faults. `n` counts operations; the next one is 1. 0 cancels the fault.

  /// The n-th operation fails (sync_lost: the n-th File::sync); the ones after it work again.
  void fail_at(std::uint64_t n, Fault fault = Fault::io);
  /// The n-th change, and every operation from then until crash(), fails without effect.
  void cut_power_at(std::uint64_t n);
  /// Limits the bytes of all files together. A write beyond the limit writes what fits and returns
  /// `no_space`.
  void space_limit(std::uint64_t bytes);
  /// On a full disk nothing can be overwritten either, as on disks that write copies.
  void copy_on_write(bool is_on) {
    const std::lock_guard lock(mutex_);
    is_copying_ = is_on;
  }
  /// Power loss and reboot, as described above. Clears all faults; the space limit stays.
  void crash(std::uint64_t seed);

  /// kill -9 of the program: open files are gone, but the disk and the kernel's cache are
  /// unchanged. Clears all faults.
  void kill();

  [[nodiscard]] Operations operations() const;
  [[nodiscard]] std::uint64_t bytes_used() const;
  [[nodiscard]] int open_files() const { return *open_files_; }
  /// While so many files are open no other can be opened: `unavailable`.
  void files_limit(int files) {
    const std::lock_guard lock(mutex_);
    files_limit_ = files;
  }

  Result<std::unique_ptr<File>> open(const std::filesystem::path& path, OpenMode mode) override;
  Result<void> rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  Result<void> remove(const std::filesystem::path& path) override;
  bool exists(const std::filesystem::path& path) override;
  Result<std::vector<std::string>> list(const std::filesystem::path& folder) override;
  Result<void> make_folder(const std::filesystem::path& folder) override;
  Result<void> sync_folder(const std::filesystem::path& folder) override;

 private:
  class Handle;
  struct Node;  // A file's contents, which no name or several names may refer to.
  using Names = std::map<std::string, std::shared_ptr<Node>>;
  /// `from` empty: a creation. `to` empty: a removal.
  struct NameChange {
    std::string from;
    std::string to;
    std::shared_ptr<Node> node;

    void apply(Names& names) const;
    [[nodiscard]] bool touches(const std::string& folder) const;
  };
  enum class Kind { look, change, sync };

  // Called with mutex_ held.
  Result<void> begin(Kind kind, const std::string& what);
  Result<void> write(Node& node, const std::string& path, std::uint64_t offset, Bytes bytes);
  void resize(Node& node, std::uint64_t bytes);
  void change_name(NameChange change);
  void forget_handles_and_faults();
  [[nodiscard]] std::uint64_t used() const;

  mutable std::mutex mutex_;
  Names names_;                      // The names that programs see.
  Names durable_names_;              // The names that survive a crash for sure.
  std::vector<NameChange> changes_;  // Lead from durable_names_ to names_, oldest first.
  std::set<std::string> folders_{"", "/", "."};
  std::shared_ptr<std::atomic<int>> open_files_ = std::make_shared<std::atomic<int>>(0);
  int files_limit_ = std::numeric_limits<int>::max();
  std::uint64_t generation_ = 0;  // Crashes and kills so far.
  std::uint64_t space_ = no_limit;
  bool is_copying_ = false;
  std::uint64_t fail_countdown_ = 0;
  Fault fault_ = Fault::io;
  std::uint64_t cut_countdown_ = 0;
  bool power_is_off_ = false;
  Operations operations_;
};

}  // namespace fl::test
