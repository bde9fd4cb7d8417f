// SPDX-License-Identifier: Apache-2.0
// ZipArchive: reads the members of a ZIP archive (PKWARE's APPNOTE, 6.3), stored or deflated, of
// any size (ZIP64). One thread at a time.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/base/io/file.hpp"

#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

class ZipArchive {
 public:
  struct Member {
    std::string name;
    std::uint16_t flags = 0;
    std::uint16_t method = 0;  // 0: stored; 8: deflated.
    std::uint32_t crc = 0;
    std::uint64_t packed_bytes = 0;
    std::uint64_t bytes = 0;
    std::uint64_t header_at = 0;  // In the file.
  };

  /// Reads the archive's directory. Errors name the file: corrupt, too_large for a directory beyond
  /// the limit, and those of Files::open().
  static Result<ZipArchive> open(const std::filesystem::path& path);

  [[nodiscard]] const std::vector<Member>& members() const { return members_; }
  /// Makes this one of members() the member that is read next. Errors of this and the next two
  /// functions say what is wrong without a name: corrupt, io.
  [[nodiscard]] Result<void> select(const Member& member);
  /// Fills `out` with the next bytes of the member.
  [[nodiscard]] Result<void> read(MutableBytes out);
  /// Checks the checksum; the member must have been read to its end.
  [[nodiscard]] Result<void> finish();

 private:
  struct End {
    void operator()(z_stream* stream) const noexcept {
      inflateEnd(stream);
      delete stream;
    }
  };

  explicit ZipArchive(std::unique_ptr<File> file) : file_(std::move(file)) {}
  Result<void> read_directory();
  Result<void> read_packed(MutableBytes out);
  Result<void> unpack(MutableBytes out);
  Result<void> fill();

  std::unique_ptr<File> file_;
  std::uint64_t directory_at_ = 0;
  std::vector<Member> members_;
  // All below is about the member that is being read.
  Member member_;
  std::uint64_t packed_at_ = 0;    // Where the next packed byte is in the file.
  std::uint64_t packed_left_ = 0;  // The packed bytes from there on.
  std::uint64_t left_ = 0;         // Bytes of the member that were not read yet.
  std::uint32_t crc_ = 0;          // The checksum of those that were.
  std::unique_ptr<z_stream, End> stream_;
  std::vector<std::byte> packed_;
};

}  // namespace fl
