// SPDX-License-Identifier: Apache-2.0
// NpzFile: the arrays of a file that numpy.savez() or savez_compressed() wrote: a ZIP archive with
// a NAME.npy for each (numpy's NEP 1). One thread at a time.
#pragma once

#include "client/learn/data/storage.hpp"
#include "client/learn/data/zip_archive.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

/// Describes an array of little-endian numbers.
struct NpyHeader {
  char kind = 0;  // As numpy's dtype.kind: b, i, u, f, S or U.
  std::uint64_t item_bytes = 0;
  std::vector<std::uint64_t> shape;
  bool is_fortran = false;  // The first index runs fastest in the file, not the last one.
};

/// Parses the text of a header: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }. Errors
/// say what is not supported and how to write it otherwise.
[[nodiscard]] Result<NpyHeader> parse_npy_header(std::string_view text);

class NpzFile {
 public:
  /// An array in Fortran's order beyond `memory_bytes` goes to the disk (StorageWriter).
  static Result<NpzFile> open(const std::filesystem::path& path, std::uint64_t memory_bytes = 0);

  /// Makes NAME the array that is read next; false if there is none. Its bytes are as many as its
  /// header says.
  [[nodiscard]] Result<bool> select(const std::string& name);
  /// "x, y, site": the names of the arrays; after many of them "...".
  [[nodiscard]] std::string names() const;
  [[nodiscard]] const NpyHeader& header() const { return header_; }
  [[nodiscard]] std::uint64_t items() const { return items_; }
  /// Fills `out` with the next items, of which the last index runs fastest.
  [[nodiscard]] Result<void> read(std::span<std::byte> out);
  /// Checks the checksum; the array must have been read to its end.
  [[nodiscard]] Result<void> finish();

  /// "FILE: array "NAME": WHAT"
  [[nodiscard]] Error wrong(std::string_view what) const;
  [[nodiscard]] Error wrong(const Error& error) const {
    return {error.code(), wrong(error.message()).message()};
  }

 private:
  NpzFile(std::string path, ZipArchive archive, std::uint64_t memory_bytes)
      : path_(std::move(path)), archive_(std::move(archive)), memory_bytes_(memory_bytes) {}
  Result<void> read_next(std::span<std::byte> out);
  Result<void> read_header(std::uint64_t member_bytes);
  Result<void> keep_columns();

  std::string path_;
  std::string name_;
  ZipArchive archive_;
  std::uint64_t memory_bytes_;
  NpyHeader header_;
  std::uint64_t items_ = 0;
  // An array in Fortran's order is read through these two.
  Storage columns_;                   // The bytes of the array as they are in the file.
  std::vector<std::uint64_t> index_;  // The index of the next item.
};

}  // namespace fl
