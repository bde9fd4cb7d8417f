// SPDX-License-Identifier: Apache-2.0
// FileMapping: the bytes of a file as memory, read only. What is written to the file shows in it.
//
// The kernel reports a page that can't be read (the disk fails, or the file was cut) by the signal
// SIGBUS, which would end the program. For mappings made here the page reads as zeros instead, and
// check() returns the error. So a user of the bytes calls check() before it relies on them.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>

namespace fl {

struct MappingSlot;

/// Any thread.
class FileMapping {
 public:
  /// How many mappings a process may have at the same time.
  static constexpr std::size_t mappings_max = 256;

  /// Maps the first `bytes` bytes of an open file, of which only the descriptor is used, and not
  /// afterwards. The first call of a process takes the signal SIGBUS. Errors: io; unavailable for
  /// more than mappings_max mappings.
  [[nodiscard]] static Result<std::unique_ptr<FileMapping>> make(int descriptor,
                                                                 std::uint64_t bytes,
                                                                 std::filesystem::path path);
  ~FileMapping();
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;

  [[nodiscard]] Bytes bytes() const;
  /// Errors: io, with the path, if a page could not be read since the mapping was made.
  [[nodiscard]] Result<void> check() const;

 private:
  FileMapping(MappingSlot* slot, std::filesystem::path path)
      : slot_(slot), path_(std::move(path)) {}

  MappingSlot* slot_;  // Null: no bytes.
  std::filesystem::path path_;
};

}  // namespace fl
