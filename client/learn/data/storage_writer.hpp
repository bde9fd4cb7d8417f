// SPDX-License-Identifier: Apache-2.0
// StorageWriter: collects the inputs of a data set while a reader makes them. They stay in memory
// up to a limit; beyond it they go into a file that has no name, and the data set is that file,
// mapped. A reader never holds them twice. One thread at a time.
#pragma once

#include "client/learn/data/storage.hpp"
#include "shared/base/error.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

namespace fl {

/// A quarter of the memory that this process may use.
[[nodiscard]] std::uint64_t data_memory_default();

/// Where files beyond the limit are: TMPDIR, else /var/tmp (/tmp is memory on some machines).
[[nodiscard]] std::filesystem::path scratch_folder();

class StorageWriter {
 public:
  /// `memory_bytes_max` 0 means data_memory_default().
  explicit StorageWriter(std::uint64_t memory_bytes_max = 0,
                         std::filesystem::path folder = scratch_folder());
  ~StorageWriter();
  StorageWriter(StorageWriter&&) noexcept;
  StorageWriter& operator=(StorageWriter&&) = delete;

  /// Errors: no_space and io, which name the folder and say what to do.
  [[nodiscard]] Result<void> append(std::span<const std::byte> bytes);
  template <class Value>
  [[nodiscard]] Result<void> append(std::span<const Value> values) {
    return append(std::as_bytes(values));
  }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] bool is_on_disk() const { return file_ >= 0; }

  /// All that was appended. The writer is empty afterwards.
  [[nodiscard]] Result<Storage> finish();

 private:
  class Mapping;

  Result<void> make_room(std::uint64_t bytes);
  Result<void> move_to_disk();
  Result<void> write(std::span<const std::byte> bytes);
  Result<void> write_pending();
  [[nodiscard]] Error failed(std::string_view what) const;

  std::uint64_t memory_bytes_max_;
  std::filesystem::path folder_;
  std::unique_ptr<Mapping> memory_;  // The bytes so far, while they are in memory.
  int file_ = -1;
  std::vector<std::byte> pending_;  // The end of the file, not yet written.
  std::uint64_t bytes_ = 0;
};

}  // namespace fl
