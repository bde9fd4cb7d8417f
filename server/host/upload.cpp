// SPDX-License-Identifier: Apache-2.0
#include "server/host/upload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace fl::server {

namespace {

constexpr std::size_t hash_block_bytes = 1 << 20;

/// The mark behind an upload's bytes: the next offset, and a digest of everything that the mark
/// depends on. So neither another upload's mark nor half a mark is taken for one of this upload.
constexpr std::size_t mark_bytes = sizeof(std::uint64_t) + 16;

Digest mark_digest(const Upload& upload, std::uint64_t next_offset) {
  return Digest::of(bytes_of(fmt::format("{} {} {} {}", upload.task(), upload.bytes(),
                                         upload.digest().hex(), next_offset)));
}

}  // namespace

Result<void> Upload::append(Bytes bytes) {
  FL_ASSERT(!differs_);  // Nothing is written after finish().
  FL_ASSERT(bytes.size() <= bytes_ - next_offset_);
  FL_CHECK(file_->write_at(next_offset_, bytes));
  hasher_.update(bytes);
  next_offset_ += bytes.size();
  writeback_.reached(*file_, next_offset_);
  return mark_progress();
}

Result<void> Upload::mark_progress() {
  const std::string check = mark_digest(*this, next_offset_).raw();
  std::array<std::byte, mark_bytes> mark;
  std::memcpy(mark.data(), &next_offset_, sizeof next_offset_);
  std::memcpy(mark.data() + sizeof next_offset_, check.data(), check.size());
  return file_->write_at(bytes_, mark);
}

/// The offset in the mark of this very upload; 0 without one.
Result<std::uint64_t> Upload::marked_progress() {
  std::array<std::byte, mark_bytes> mark;
  FL_TRY(const std::size_t got, file_->read_at(bytes_, mark));
  if (got < mark.size()) return std::uint64_t{0};
  std::uint64_t next_offset = 0;
  std::memcpy(&next_offset, mark.data(), sizeof next_offset);
  const std::string check = mark_digest(*this, next_offset).raw();
  const bool is_ours = next_offset <= bytes_ && std::memcmp(mark.data() + sizeof next_offset,
                                                            check.data(), check.size()) == 0;
  return is_ours ? next_offset : std::uint64_t{0};
}

Result<void> Upload::finish() {
  FL_ASSERT(is_complete());
  const Digest arrived = hasher_.digest();
  differs_ = arrived != digest_;
  if (differs_) {
    return Error(Errc::corrupt,
                 fmt::format("the update's {} bytes have digest {}, announced was {}", bytes_,
                             arrived.hex(), digest_.hex()));
  }
  return file_->sync();
}

Result<void> Upload::resume() {
  FL_TRY(const std::uint64_t size, file_->size());
  if (size > bytes_ + mark_bytes) FL_CHECK(file_->truncate(bytes_ + mark_bytes));
  FL_TRY(const std::uint64_t there, marked_progress());
  std::vector<std::byte> block(std::min<std::uint64_t>(hash_block_bytes, there));
  while (next_offset_ < there) {
    const auto bytes =
        static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), there - next_offset_));
    const MutableBytes part(block.data(), bytes);
    FL_CHECK(file_->read_exactly(next_offset_, part));
    // If a sync failed before a restart, the bytes we read are only in the kernel's cache, but
    // count as written. We write them again, so that our own sync makes them durable.
    FL_CHECK(file_->write_at(next_offset_, part));
    hasher_.update(part);
    next_offset_ += bytes;
  }
  FL_ASSERT(next_offset_ == there && there <= bytes_);
  return {};
}

}  // namespace fl::server
