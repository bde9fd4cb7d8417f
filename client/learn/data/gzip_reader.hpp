// SPDX-License-Identifier: Apache-2.0
// GzipReader: reads a file from its beginning to its end through zlib, which unpacks a gzipped file
// and passes a plain one through. One thread at a time.
#pragma once

#include "shared/base/error.hpp"

#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace fl {

class GzipReader {
 public:
  static Result<GzipReader> open(const std::filesystem::path& path);

  /// Fills as much of `out` as the file has left, and returns how much that was: less than all of
  /// `out` only at the end. Errors: io, and corrupt for a broken or truncated gzip stream.
  [[nodiscard]] Result<std::size_t> read_some(std::span<std::uint8_t> out);
  /// Fills `out`. `what` names the data in the error for a file that is too short.
  [[nodiscard]] Result<void> read(std::span<std::uint8_t> out, std::string_view what);
  /// An error if there is something left.
  [[nodiscard]] Result<void> expect_end();

  [[nodiscard]] const std::string& path() const { return path_; }
  /// Bytes read so far, unpacked.
  [[nodiscard]] std::uint64_t offset() const { return offset_; }
  [[nodiscard]] Error corrupt(std::string_view what) const;

 private:
  struct Close {
    void operator()(gzFile file) const noexcept { gzclose(file); }
  };

  GzipReader(std::string path, gzFile file) : path_(std::move(path)), file_(file) {}
  [[nodiscard]] bool is_broken() const;
  [[nodiscard]] Error broken() const;

  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
  std::uint64_t offset_ = 0;
};

}  // namespace fl
