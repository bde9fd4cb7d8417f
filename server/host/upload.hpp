// SPDX-License-Identifier: Apache-2.0
// An update on its way into a file, still coded. A session appends the chunks as they come; its
// host has made the upload, and finishes it.
//
// The file is as long as the upload plus a mark behind it, which says how much of it has come. So
// an upload that broke off goes on where it stopped, and a longer file that was there before may be
// written over.
#pragma once

#include "server/history/records.hpp"
#include "shared/base/io/digest.hpp"
#include "shared/base/io/file.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace fl::server {

/// One upload under way. The session's strand writes, then the host's workers finish: one at a
/// time.
class Upload {
 public:
  /// `name`: the file's name in its folder. `bytes` and `digest` are what the client announced.
  Upload(TaskId task, std::string name, std::shared_ptr<File> file, std::uint64_t bytes,
         Digest digest)
      : task_(task),
        name_(std::move(name)),
        file_(std::move(file)),
        bytes_(bytes),
        digest_(digest) {}

  [[nodiscard]] TaskId task() const { return task_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t next_offset() const { return next_offset_; }
  [[nodiscard]] bool is_complete() const { return next_offset_ == bytes_; }
  [[nodiscard]] const std::string& file_name() const { return name_; }
  [[nodiscard]] const Digest& digest() const { return digest_; }
  [[nodiscard]] std::shared_ptr<File> file() const { return file_; }

  /// Goes on behind what the file has of this upload already; without that at its beginning. Call
  /// it once, before append().
  [[nodiscard]] Result<void> resume();
  /// Appends; the caller has checked the chunk's offset and size (check_chunk).
  [[nodiscard]] Result<void> append(Bytes bytes);
  /// Syncs the bytes of a complete upload; the file's name must be made durable by itself.
  /// `corrupt`: its bytes are not those that were announced.
  [[nodiscard]] Result<void> finish();
  /// After finish(): the bytes were not those announced.
  [[nodiscard]] bool differs() const { return differs_; }

 private:
  [[nodiscard]] Result<std::uint64_t> marked_progress();
  [[nodiscard]] Result<void> mark_progress();

  TaskId task_;
  std::string name_;
  std::shared_ptr<File> file_;
  std::uint64_t bytes_;
  Digest digest_;
  std::uint64_t next_offset_ = 0;
  Writeback writeback_;
  Hasher hasher_;
  bool differs_ = false;
};

}  // namespace fl::server
