// SPDX-License-Identifier: Apache-2.0
// Uploads on disk, still coded, as they arrive: STATE/spool/task-TASK-DIGEST. A broken upload goes
// on at the byte where it stopped, after a reconnect or a restart; an accepted one stays until its
// round is committed, so that a restarted server can add it up again.
//
// After the round a file is kept for an upload of the next one (STATE/spool/spare-N): to write
// where blocks and cached pages are there already takes a third of the time, or less. So a file may
// be longer than what has come of its upload (server/host/upload.hpp).
#pragma once

#include "server/history/records.hpp"
#include "server/host/upload.hpp"
#include "shared/base/async/mutex.hpp"
#include "shared/base/io/digest.hpp"
#include "shared/base/io/file.hpp"

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace fl::server {

/// Moves a file to another place. Where that is another file system it is copied. The new name
/// becomes durable with its folder.
[[nodiscard]] Result<void> move_file(Files& files, const std::filesystem::path& from,
                                     const std::filesystem::path& to);

/// The task in a name of the spool, "task-12-…"; none for any other name.
[[nodiscard]] std::optional<TaskId> task_of_upload(std::string_view name);

/// Any thread.
class Spool {
 public:
  Spool(Files& files, std::filesystem::path folder) : files_(files), folder_(std::move(folder)) {}

  /// The name of an upload's file.
  [[nodiscard]] static std::string name_of(TaskId task, const Digest& digest);
  /// Makes the spool's folder.
  [[nodiscard]] Result<void> prepare();
  /// Begins the task's upload of the bytes with this digest, or resumes it. Removes other bytes
  /// that came for this task since the start; `unavailable` while those are being written, or
  /// whole.
  [[nodiscard]] Result<std::shared_ptr<Upload>> open(TaskId task, std::uint64_t bytes,
                                                     const Digest& digest);
  /// Calls Upload::finish(). A whole upload stays until discard() or keep_only() removes it.
  /// `unavailable`: one of them has removed the upload's file already.
  [[nodiscard]] Result<void> finish(Upload& upload);
  /// Opens an accepted upload, to read it again.
  [[nodiscard]] Result<std::shared_ptr<File>> open_accepted(const std::string& name);
  /// Removes the upload's file, unless that is gone already and the name belongs to a new one.
  [[nodiscard]] Result<void> discard(const Upload& upload);
  /// Removes a whole upload that does not count, by its name.
  [[nodiscard]] Result<void> forget(const std::string& name);
  /// Moves an accepted upload, if it is there, to another place. Where that is another file system
  /// the upload is copied. The new name becomes durable with its folder.
  [[nodiscard]] Result<void> move_out(const std::string& name, const std::filesystem::path& to);
  /// Makes the names of new files durable.
  [[nodiscard]] Result<void> sync_names();
  /// Removes all files except those of these tasks. Some of them become spares.
  [[nodiscard]] Result<void> keep_only(const std::set<TaskId>& tasks);
  /// Removes the spares, because the disk is full or the run is over.
  [[nodiscard]] Result<void> drop_spares();

 private:
  [[nodiscard]] bool is_writer(const Upload& upload) const FL_REQUIRES(mutex_);
  [[nodiscard]] bool may_be_spare(const std::string& name) FL_REQUIRES(mutex_);
  [[nodiscard]] Result<std::unique_ptr<File>> open_file(const std::string& name)
      FL_REQUIRES(mutex_);
  [[nodiscard]] Result<void> drop_others(TaskId task, const std::string& name) FL_REQUIRES(mutex_);

  Files& files_;
  std::filesystem::path folder_;
  Mutex mutex_;
  std::vector<std::string> spares_ FL_GUARDED_BY(mutex_);
  std::uint64_t next_spare_ FL_GUARDED_BY(mutex_) = 0;
  /// The uploads that may still write to a file. A file may become a spare only if there are none.
  std::map<std::string, std::vector<std::weak_ptr<Upload>>> writers_ FL_GUARDED_BY(mutex_);
  /// Names of complete files, checked and synced.
  std::set<std::string> whole_ FL_GUARDED_BY(mutex_);
};

}  // namespace fl::server
