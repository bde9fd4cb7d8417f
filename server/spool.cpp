#include "server/spool.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

namespace fl {

namespace {

constexpr std::size_t hash_block_bytes = 1 << 20;
constexpr std::string_view prefix = "task-";

/// The task in "task-12-…"; -1 for a foreign name.
std::int64_t task_of(std::string_view name) {
  if (!name.starts_with(prefix)) return -1;
  std::int64_t task = -1;
  std::from_chars(name.data() + prefix.size(), name.data() + name.size(), task);
  return task;
}

}  // namespace

Result<void> Upload::append(Bytes bytes) {
  FL_ASSERT(bytes.size() <= bytes_ - next_offset_);
  FL_CHECK(file_->write_at(next_offset_, bytes));
  hasher_.update(bytes);
  next_offset_ += bytes.size();
  writeback_.reached(*file_, next_offset_);
  return {};
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

Result<void> Upload::hash_what_is_there() {
  FL_TRY(const std::uint64_t there, file_->size());
  if (there > bytes_) return file_->truncate(0);
  std::vector<std::byte> block(hash_block_bytes);
  while (next_offset_ < there) {
    const auto bytes =
        static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), there - next_offset_));
    const MutableBytes part(block.data(), bytes);
    FL_CHECK(file_->read_exactly(next_offset_, part));
    // Should a sync have failed before a restart, what we read is in the kernel's cache only, and
    // counted as written: writing it again makes our own sync mean something.
    FL_CHECK(file_->write_at(next_offset_, part));
    hasher_.update(part);
    next_offset_ += bytes;
  }
  return {};
}

Result<void> Spool::prepare() { return files_.make_folder(folder_); }

Result<std::shared_ptr<Upload>> Spool::open(std::int64_t task, std::uint64_t bytes,
                                            const Digest& digest) {
  const std::string name = fmt::format("{}{}-{}", prefix, task, digest.hex().substr(0, 16));
  FL_TRY(auto file, files_.open(folder_ / name, OpenMode::create));
  auto upload = std::make_shared<Upload>(task, name, std::move(file), bytes, digest);
  FL_CHECK(upload->hash_what_is_there());
  return upload;
}

Result<std::shared_ptr<File>> Spool::open_accepted(const std::string& name) {
  FL_TRY(auto file, files_.open(folder_ / name, OpenMode::read));
  return std::shared_ptr<File>(std::move(file));
}

Result<void> Spool::remove(const std::string& name) { return files_.remove(folder_ / name); }

Result<void> Spool::sync_names() { return files_.sync_folder(folder_); }

Result<void> Spool::keep_only(const std::set<std::int64_t>& tasks) {
  FL_TRY(const auto names, files_.list(folder_));
  for (const auto& name : names) {
    if (!tasks.contains(task_of(name))) FL_CHECK(remove(name));
  }
  return {};
}

}  // namespace fl
