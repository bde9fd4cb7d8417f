// SPDX-License-Identifier: Apache-2.0
#include "server/round/spool.hpp"

#include "shared/base/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

namespace fl::server {

namespace {

constexpr std::size_t copy_block_bytes = 1 << 20;
constexpr std::string_view prefix = "task-";

Result<void> copy_and_remove(Files& files, const std::filesystem::path& from,
                             const std::filesystem::path& to) {
  const std::filesystem::path fresh = to.string() + ".tmp";
  FL_TRY(const auto source, files.open(from, OpenMode::read));
  FL_TRY(const auto copy, files.open(fresh, OpenMode::fresh));
  std::vector<std::byte> block(copy_block_bytes);
  for (std::uint64_t at = 0;;) {
    FL_TRY(const std::size_t got, source->read_at(at, block));
    if (got == 0) break;
    FL_CHECK(copy->write_at(at, Bytes(block).first(got)));
    at += got;
  }
  FL_CHECK(copy->sync());
  FL_CHECK(files.rename(fresh, to));
  FL_CHECK(files.sync_folder(to.parent_path()));
  return files.remove(from);
}

}  // namespace

std::optional<TaskId> task_of_upload(std::string_view name) {
  std::int64_t number = 0;
  if (!name.starts_with(prefix)) return std::nullopt;
  const char* const digits = name.data() + prefix.size();
  const auto read = std::from_chars(digits, name.data() + name.size(), number);
  if (read.ec != std::errc() || read.ptr == digits) return std::nullopt;
  return TaskId{number};
}

Result<void> move_file(Files& files, const std::filesystem::path& from,
                       const std::filesystem::path& to) {
  auto renamed = files.rename(from, to);
  if (renamed || renamed.error().code() != Errc::io) return renamed;
  return copy_and_remove(files, from, to);
}

std::string Spool::name_of(TaskId task, const Digest& digest) {
  return fmt::format("{}{}-{}", prefix, task, digest.hex().substr(0, 16));
}

Result<void> Spool::prepare() { return files_.make_folder(folder_); }

Result<std::shared_ptr<Upload>> Spool::open(TaskId task, std::uint64_t bytes,
                                            const Digest& digest) {
  const std::string name = name_of(task, digest);
  std::shared_ptr<Upload> upload;
  {
    // Registers the upload under the lock, so that keep_only() does not recycle a file that is
    // written to next.
    const MutexLock lock(mutex_);
    FL_CHECK(drop_others(task, name));
    FL_TRY(auto file, open_file(name));
    upload = std::make_shared<Upload>(task, name, std::move(file), bytes, digest);
    auto& writers = writers_[name];
    std::erase_if(writers, [](const auto& writer) { return writer.expired(); });
    writers.push_back(upload);
  }
  FL_CHECK(upload->resume());
  return upload;
}

/// Without this a client that announces digest after digest for its task would fill the disk.
Result<void> Spool::drop_others(TaskId task, const std::string& name) {
  const std::string begin = fmt::format("{}{}-", prefix, task);
  for (auto at = writers_.lower_bound(begin);
       at != writers_.end() && at->first.starts_with(begin);) {
    if (at->first == name) {
      ++at;
      continue;
    }
    const bool is_idle =
        std::ranges::all_of(at->second, [](const auto& writer) { return writer.expired(); });
    if (!is_idle || whole_.contains(at->first)) {
      return Error(Errc::unavailable, fmt::format("another upload for task {} is under way", task));
    }
    FL_CHECK(files_.remove(folder_ / at->first));
    at = writers_.erase(at);
  }
  return {};
}

Result<std::unique_ptr<File>> Spool::open_file(const std::string& name) {
  if (!spares_.empty() && !files_.exists(folder_ / name)) {
    FL_ASSERT(!writers_.contains(spares_.back()));  // A spare has no writer, ever.
    FL_CHECK(files_.rename(folder_ / spares_.back(), folder_ / name));
    spares_.pop_back();
  }
  return files_.open(folder_ / name, OpenMode::create);
}

Result<std::shared_ptr<File>> Spool::open_accepted(const std::string& name) {
  FL_TRY(auto file, files_.open(folder_ / name, OpenMode::read));
  return std::shared_ptr<File>(std::move(file));
}

Result<void> Spool::finish(Upload& upload) {
  FL_CHECK(upload.finish());
  FL_ASSERT(upload.is_complete() && !upload.differs());
  const MutexLock lock(mutex_);
  // Two sessions of a client may write one file, and the first of them end in its removal.
  if (!is_writer(upload))
    return Error(Errc::unavailable, "the file of the upload was removed while it came");
  whole_.insert(upload.file_name());
  return {};
}

Result<void> Spool::discard(const Upload& upload) {
  const MutexLock lock(mutex_);
  if (!is_writer(upload)) return {};
  writers_.erase(upload.file_name());
  whole_.erase(upload.file_name());
  return files_.remove(folder_ / upload.file_name());
}

Result<void> Spool::forget(const std::string& name) {
  const MutexLock lock(mutex_);
  writers_.erase(name);
  whole_.erase(name);
  return files_.remove(folder_ / name);
}

bool Spool::is_writer(const Upload& upload) const {
  const auto found = writers_.find(upload.file_name());
  return found != writers_.end() && std::ranges::any_of(found->second, [&](const auto& writer) {
           return writer.lock().get() == &upload;
         });
}

Result<void> Spool::move_out(const std::string& name, const std::filesystem::path& to) {
  const MutexLock lock(mutex_);
  if (!files_.exists(folder_ / name)) return {};
  FL_CHECK(move_file(files_, folder_ / name, to));
  writers_.erase(name);
  whole_.erase(name);
  return {};
}

Result<void> Spool::sync_names() { return files_.sync_folder(folder_); }

Result<void> Spool::keep_only(const std::set<TaskId>& tasks) {
  FL_TRY(const auto names, files_.list(folder_));
  const MutexLock lock(mutex_);
  for (const auto& name : names) {
    const auto task = task_of_upload(name);
    if ((task && tasks.contains(*task)) || std::ranges::count(spares_, name) > 0) continue;
    if (may_be_spare(name)) {
      const std::string spare = fmt::format("spare-{}", next_spare_++);
      FL_CHECK(files_.rename(folder_ / name, folder_ / spare));
      spares_.push_back(spare);
    } else {
      FL_CHECK(files_.remove(folder_ / name));
    }
    writers_.erase(name);
    whole_.erase(name);
  }
  return {};
}

/// A session that has lost its connection may hold its upload for a while.
bool Spool::may_be_spare(const std::string& name) {
  const auto writers = writers_.find(name);
  return spares_.size() < limits::spare_uploads_max && writers != writers_.end() &&
         std::ranges::all_of(writers->second, [](const auto& writer) { return writer.expired(); });
}

Result<void> Spool::drop_spares() {
  const MutexLock lock(mutex_);
  while (!spares_.empty()) {
    FL_CHECK(files_.remove(folder_ / spares_.back()));
    spares_.pop_back();
  }
  return {};
}

}  // namespace fl::server
