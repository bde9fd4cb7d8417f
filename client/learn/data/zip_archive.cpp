// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/zip_archive.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace fl {

namespace {

constexpr std::uint64_t directory_bytes_max = 64 << 20;
constexpr std::size_t zip_piece_bytes = 256 << 10;
constexpr std::uint16_t encrypted = 1;
constexpr std::uint16_t deflated = 8;
// Numbers of 16 and 32 bits that stand for one of 64 bits elsewhere.
constexpr std::uint16_t wide_16 = std::numeric_limits<std::uint16_t>::max();
constexpr std::uint32_t wide_32 = std::numeric_limits<std::uint32_t>::max();

// Each record begins with four bytes that say what it is. These are the sizes without what follows.
struct Record {
  std::uint32_t signature;
  std::size_t bytes;
};
constexpr Record end_record{0x06054b50, 22};
constexpr Record wide_locator{0x07064b50, 20};
constexpr Record wide_end_record{0x06064b50, 56};
constexpr Record directory_record{0x02014b50, 46};
constexpr Record local_record{0x04034b50, 30};
constexpr std::size_t comment_bytes_max = 0xffff;

bool is(Bytes bytes, const Record& record) {
  return bytes.size() >= record.bytes && load<std::uint32_t>(bytes) == record.signature;
}

Error damaged() { return {Errc::corrupt, "it is damaged"}; }

/// Where the directory is.
struct Directory {
  std::uint64_t at = 0;
  std::uint64_t bytes = 0;
  std::uint64_t members = 0;
};

/// Reads the records at the end of the file.
Result<std::optional<Directory>> find_directory(File& file) {
  constexpr auto none = std::optional<Directory>();
  FL_TRY(const std::uint64_t size, file.size());
  std::vector<std::byte> tail(
      std::min<std::uint64_t>(size, end_record.bytes + comment_bytes_max + wide_locator.bytes));
  FL_CHECK(file.read_exactly(size - tail.size(), tail));
  for (std::size_t at = tail.size(); at-- > 0;) {
    const Bytes end = Bytes(tail).subspan(at);
    if (!is(end, end_record)) continue;
    if (load<std::uint16_t>(end, 20) != end.size() - end_record.bytes) continue;
    Directory found{.at = load<std::uint32_t>(end, 16),
                    .bytes = load<std::uint32_t>(end, 12),
                    .members = load<std::uint16_t>(end, 10)};
    if (found.at == wide_32 || found.bytes == wide_32 || found.members == wide_16) {
      if (at < wide_locator.bytes) return none;
      const Bytes locator = Bytes(tail).subspan(at - wide_locator.bytes);
      std::vector<std::byte> wide(wide_end_record.bytes);
      const auto wide_at = load<std::uint64_t>(locator, 8);
      if (!is(locator, wide_locator) || wide_at > size || size - wide_at < wide.size()) return none;
      FL_CHECK(file.read_exactly(wide_at, wide));
      if (!is(wide, wide_end_record)) return none;
      found = {.at = load<std::uint64_t>(wide, 48),
               .bytes = load<std::uint64_t>(wide, 40),
               .members = load<std::uint64_t>(wide, 32)};
    }
    if (found.at > size || found.bytes > size - found.at) return none;
    return std::optional(found);
  }
  return none;
}

/// Puts in the numbers of 64 bits that stand in the extra fields of a directory's record.
bool take_wide(Bytes extra, ZipArchive::Member& member) {
  std::vector<std::uint64_t*> wanted;
  for (std::uint64_t* number : {&member.bytes, &member.packed_bytes, &member.header_at})
    if (*number == wide_32) wanted.push_back(number);
  while (!wanted.empty() && extra.size() >= 4) {
    const auto kind = load<std::uint16_t>(extra);
    const std::size_t bytes = load<std::uint16_t>(extra, 2);
    extra = extra.subspan(4);
    if (bytes > extra.size()) return false;
    constexpr std::uint16_t wide_numbers = 1;
    if (kind == wide_numbers) {
      if (bytes < 8 * wanted.size()) return false;
      for (std::size_t i = 0; i < wanted.size(); ++i)
        *wanted[i] = load<std::uint64_t>(extra, 8 * i);
      wanted.clear();
    }
    extra = extra.subspan(bytes);
  }
  return wanted.empty();
}

/// Takes a record off the directory; nothing if it is damaged.
std::optional<ZipArchive::Member> take_member(Bytes& directory) {
  if (!is(directory, directory_record)) return std::nullopt;
  ZipArchive::Member member{.name = {},
                            .flags = load<std::uint16_t>(directory, 8),
                            .method = load<std::uint16_t>(directory, 10),
                            .crc = load<std::uint32_t>(directory, 16),
                            .packed_bytes = load<std::uint32_t>(directory, 20),
                            .bytes = load<std::uint32_t>(directory, 24),
                            .header_at = load<std::uint32_t>(directory, 42)};
  const std::size_t name_bytes = load<std::uint16_t>(directory, 28);
  const std::size_t extra_bytes = load<std::uint16_t>(directory, 30);
  const std::size_t comment_bytes = load<std::uint16_t>(directory, 32);
  directory = directory.subspan(directory_record.bytes);
  if (name_bytes + extra_bytes + comment_bytes > directory.size()) return std::nullopt;
  member.name = text_of(directory.first(name_bytes));
  if (!take_wide(directory.subspan(name_bytes, extra_bytes), member)) return std::nullopt;
  directory = directory.subspan(name_bytes + extra_bytes + comment_bytes);
  return member;
}

}  // namespace

Result<ZipArchive> ZipArchive::open(const std::filesystem::path& path) {
  FL_TRY(auto file, posix_files().open(path, OpenMode::read));
  ZipArchive archive(std::move(file));
  if (const auto read = archive.read_directory(); !read) return read.error().at(path.string());
  return archive;
}

Result<void> ZipArchive::read_directory() {
  const Error broken{Errc::corrupt, "not a whole ZIP archive"};
  FL_TRY(const auto found, find_directory(*file_));
  if (!found) return broken;
  if (found->bytes > directory_bytes_max) {
    return Error(Errc::too_large,
                 fmt::format("the archive's directory has {} bytes; the limit is {}", found->bytes,
                             directory_bytes_max));
  }
  std::vector<std::byte> bytes(found->bytes);
  FL_CHECK(file_->read_exactly(found->at, bytes));
  for (Bytes left(bytes); !left.empty();) {
    auto member = take_member(left);
    if (!member) return broken;
    members_.push_back(std::move(*member));
  }
  if (members_.size() != found->members) return broken;
  directory_at_ = found->at;
  return {};
}

Result<void> ZipArchive::select(const Member& member) {
  member_ = member;
  stream_.reset();
  if ((member.flags & encrypted) != 0) return Error(Errc::corrupt, "it is encrypted");
  if (member.method != 0 && member.method != deflated) {
    return Error(
        Errc::corrupt,
        fmt::format("it is compressed by the method {} of ZIP; 0 (stored) and 8 (deflated) "
                    "can be read",
                    member.method));
  }
  std::byte header[local_record.bytes];
  if (member.header_at > directory_at_ || directory_at_ - member.header_at < sizeof header)
    return damaged();
  FL_CHECK(file_->read_exactly(member.header_at, header));
  if (!is(header, local_record)) return damaged();
  packed_at_ = member.header_at + sizeof header + load<std::uint16_t>(header, 26) +
               load<std::uint16_t>(header, 28);
  packed_left_ = member.packed_bytes;
  if (packed_at_ > directory_at_ || packed_left_ > directory_at_ - packed_at_) return damaged();
  left_ = member.bytes;
  crc_ = 0;
  if (member.method == 0) return member.bytes == member.packed_bytes ? success() : damaged();
  auto stream = std::make_unique<z_stream>();
  *stream = {};
  if (inflateInit2(stream.get(), -MAX_WBITS) != Z_OK)
    return Error(Errc::internal, "zlib could not start");
  stream_.reset(stream.release());
  return {};
}

Result<void> ZipArchive::read(MutableBytes out) {
  if (out.size() > left_) return Error(Errc::corrupt, "it ends too early");
  FL_CHECK(stream_ ? unpack(out) : read_packed(out));
  crc_ = static_cast<std::uint32_t>(
      crc32_z(crc_, reinterpret_cast<const Bytef*>(out.data()), out.size()));
  left_ -= out.size();
  return {};
}

Result<void> ZipArchive::read_packed(MutableBytes out) {
  FL_CHECK(file_->read_exactly(packed_at_, out));
  packed_at_ += out.size();
  packed_left_ -= out.size();
  return {};
}

/// Gives the stream more packed bytes when it has none.
Result<void> ZipArchive::fill() {
  if (stream_->avail_in > 0 || packed_left_ == 0) return {};
  packed_.resize(std::min<std::uint64_t>(zip_piece_bytes, packed_left_));
  FL_CHECK(read_packed(packed_));
  stream_->next_in = reinterpret_cast<Bytef*>(packed_.data());
  stream_->avail_in = static_cast<uInt>(packed_.size());
  return {};
}

Result<void> ZipArchive::unpack(MutableBytes out) {
  while (!out.empty()) {
    FL_CHECK(fill());
    const auto piece = static_cast<uInt>(std::min(out.size(), zip_piece_bytes));
    stream_->next_out = reinterpret_cast<Bytef*>(out.data());
    stream_->avail_out = piece;
    const int state = inflate(stream_.get(), Z_NO_FLUSH);
    const std::size_t made = piece - stream_->avail_out;
    out = out.subspan(made);
    if (state == Z_OK || (state == Z_STREAM_END && out.empty())) continue;
    return damaged();
  }
  return {};
}

Result<void> ZipArchive::finish() {
  FL_ASSERT(left_ == 0);
  if (stream_) {
    // The end of the stream may follow behind the last byte.
    Bytef none = 0;
    stream_->next_out = &none;
    stream_->avail_out = 1;
    int state = Z_OK;
    while (state == Z_OK && stream_->avail_out == 1) {
      FL_CHECK(fill());
      state = inflate(stream_.get(), Z_NO_FLUSH);
    }
    const bool is_over = state == Z_STREAM_END && stream_->avail_out == 1 &&
                         stream_->avail_in == 0 && packed_left_ == 0;
    if (!is_over) return damaged();
  }
  if (crc_ == member_.crc) return {};
  return Error(Errc::corrupt, "it is damaged: its checksum does not fit");
}

}  // namespace fl
