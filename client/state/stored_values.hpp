// SPDX-License-Identifier: Apache-2.0
// StoredValues: a flat vector of fp32 that is as large as a model. It lies in a file, which is
// written piece by piece and read as a mapping, so that it takes the page cache and no memory of
// the program; or in memory, if there is room or the file can't be mapped (tests, fl-sim).
#pragma once

#include "shared/base/async/mutex.hpp"
#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"
#include "shared/params/write_values.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace fl::client {

/// A share of the memory that vectors may take together. It is given back when this object ends.
class MemoryShare {
 public:
  using BytesLeft = std::shared_ptr<std::atomic<std::uint64_t>>;
  /// Null if so much is not left.
  [[nodiscard]] static std::unique_ptr<MemoryShare> take(BytesLeft left, std::uint64_t bytes);
  ~MemoryShare() { *left_ += bytes_; }
  MemoryShare(const MemoryShare&) = delete;
  MemoryShare& operator=(const MemoryShare&) = delete;

 private:
  MemoryShare(BytesLeft left, std::uint64_t bytes) : left_(std::move(left)), bytes_(bytes) {}

  BytesLeft left_;
  std::uint64_t bytes_;
};

/// values() and write() on disjoint ranges: any thread. All else: one thread at a time.
class StoredValues {
 public:
  /// No values.
  StoredValues() = default;
  /// Values in memory, which may be a share of a limited one.
  explicit StoredValues(std::vector<float> values, std::unique_ptr<MemoryShare> share = nullptr)
      : memory_(std::move(values)), share_(std::move(share)) {}
  /// A new file of `elements` values in place of what has that name, or with OpenMode::update in
  /// its blocks; their contents are arbitrary. Takes the room on the disk at once. Errors: no_space
  /// and others of the disk.
  [[nodiscard]] static Result<StoredValues> make(Files& files, const std::filesystem::path& path,
                                                 std::uint64_t elements,
                                                 OpenMode mode = OpenMode::truncate);
  /// The values of a file, for reading. Errors: corrupt, with the path, if it is too short; those
  /// of the disk.
  [[nodiscard]] static Result<StoredValues> open(Files& files, const std::filesystem::path& path,
                                                 std::uint64_t elements);

  [[nodiscard]] std::span<const float> values() const {
    if (!mapping_) return memory_;
    const Bytes bytes = mapping_->bytes();
    return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
  }
  [[nodiscard]] std::size_t size() const { return values().size(); }
  [[nodiscard]] bool is_in_memory() const { return file_ == nullptr; }
  /// The values themselves, if they lie in memory only; else empty.
  [[nodiscard]] std::span<float> memory() { return file_ ? std::span<float>() : memory_; }
  /// The memory of values that lie in no file, for other values; its share is given back.
  [[nodiscard]] std::vector<float> release_memory() &&;
  /// Replaces the values from `first` on. values() has the new ones at once.
  [[nodiscard]] Result<void> write(std::uint64_t first, std::span<const float> values);
  /// Replaces bytes of the values, from any byte on.
  [[nodiscard]] Result<void> write_bytes(std::uint64_t first, Bytes bytes);
  /// Errors: io, if a part of a mapping could not be read: then values() had zeros there.
  [[nodiscard]] Result<void> check() const { return mapping_ ? mapping_->check() : success(); }
  /// Makes a file's contents durable. Not its name.
  [[nodiscard]] Result<void> sync();

 private:
  [[nodiscard]] static Result<StoredValues> read_or_map(std::unique_ptr<File> file,
                                                        std::uint64_t elements, bool is_new);

  std::unique_ptr<File> file_;  // Null: in memory only.
  std::unique_ptr<FileMapping> mapping_;
  std::vector<float> memory_;  // Without a mapping.
  std::unique_ptr<MemoryShare> share_;
};

/// Pieces in which long vectors are worked on: 4 MiB.
inline constexpr std::size_t piece_elements = 1 << 20;
/// Calls work(first, count) for the pieces of [0, elements), in order, until one fails.
using WorkOnPiece = std::function<Result<void>(std::size_t first, std::size_t count)>;
[[nodiscard]] Result<void> for_each_piece(std::size_t elements, const WorkOnPiece& work);

/// Changes `count` values from element `first` on, piece by piece: change(at, piece), where `at`
/// counts from `first`, on any of so many threads.
using ChangePiece = std::function<void(std::size_t at, std::span<float> piece)>;
[[nodiscard]] Result<void> change_values(StoredValues& target, std::size_t first, std::size_t count,
                                         const ChangePiece& change, int threads = 1);

/// Writes to `target`, from its element `begin` on. `target` must outlive the function.
[[nodiscard]] WriteValues write_into(StoredValues& target, std::uint64_t begin = 0);

/// Writes `source` to the beginning of `target`.
[[nodiscard]] Result<void> copy_values(std::span<const float> source, StoredValues& target);

/// Writes zeros from element `first` to the end.
[[nodiscard]] Result<void> fill_zeros(StoredValues& target, std::size_t first);

/// All vectors of a client's pool together take at most so much of its memory.
inline constexpr std::uint64_t values_in_memory_bytes_max = 224 << 20;

/// Vectors for a short time, used again and again, because getting fresh room costs time: in memory
/// as long as all of them take at most `memory_bytes_max`, else in files without a name, whose room
/// the kernel frees at the latest when the process ends. Any thread, if `files` may be used by any.
class ValuePool {
 public:
  /// All in memory.
  ValuePool() = default;
  ValuePool(Files& files, std::filesystem::path folder, std::uint64_t memory_bytes_max);

  /// Returns a vector of so many values with arbitrary contents. Errors: those of the disk.
  [[nodiscard]] Result<StoredValues> borrow(std::size_t elements);
  /// Takes a vector back. One that is not given back is simply freed.
  void give_back(StoredValues values);

 private:
  static constexpr std::size_t kept_max = 32;

  [[nodiscard]] StoredValues take_kept(std::size_t elements);

  Files* files_ = nullptr;
  std::filesystem::path folder_;
  MemoryShare::BytesLeft memory_left_;  // Null: no limit.
  std::atomic<std::uint64_t> files_made_ = 0;
  Mutex mutex_;
  std::vector<StoredValues> kept_ FL_GUARDED_BY(mutex_);
};

}  // namespace fl::client
