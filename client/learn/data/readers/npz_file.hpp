// SPDX-License-Identifier: Apache-2.0
// NpzFile: the arrays of a file that numpy.savez() or savez_compressed() wrote: a ZIP archive with
// a NAME.npy for each (numpy's NEP 1), read through minizip. One thread at a time.
#pragma once

#include "shared/base/error.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

/// What an array holds: little-endian, rows first.
struct NpyHeader {
  char kind = 0;  // As numpy's dtype.kind: b, i, u, f, S or U.
  std::uint64_t item_bytes = 0;
  std::vector<std::uint64_t> shape;
};

/// Parses the text of a header: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }. Errors
/// say what is not supported and how to write it otherwise.
[[nodiscard]] Result<NpyHeader> parse_npy_header(std::string_view text);

class NpzFile {
 public:
  static Result<NpzFile> open(const std::filesystem::path& path);

  /// Makes NAME the array that is read next; false if there is none. Its bytes are as many as its
  /// header says.
  [[nodiscard]] Result<bool> select(const std::string& name);
  [[nodiscard]] const NpyHeader& header() const { return header_; }
  [[nodiscard]] std::uint64_t items() const { return items_; }
  /// Fills `out` with the next bytes.
  [[nodiscard]] Result<void> read(std::span<std::byte> out);
  /// Checks the checksum; the array must have been read to its end.
  [[nodiscard]] Result<void> finish();

  /// "FILE: array "NAME": WHAT"
  [[nodiscard]] Error wrong(std::string_view what) const;
  [[nodiscard]] Error wrong(const Error& error) const {
    return {error.code(), wrong(error.message()).message()};
  }

 private:
  struct Close {
    void operator()(void* archive) const noexcept;
  };

  NpzFile(std::string path, void* archive) : path_(std::move(path)), archive_(archive) {}
  Result<void> read_header(std::uint64_t member_bytes);

  std::string path_;
  std::string name_;
  std::unique_ptr<void, Close> archive_;
  NpyHeader header_;
  std::uint64_t items_ = 0;
};

}  // namespace fl
