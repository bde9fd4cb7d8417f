// SPDX-License-Identifier: Apache-2.0
// A file that is open only while somebody uses it: a server that keeps thousands of versions must
// not hold thousands of files open. Any thread.
#pragma once

#include "shared/base/async/mutex.hpp"
#include "shared/base/io/file.hpp"
#include "shared/base/io/file_mapping.hpp"

#include <filesystem>
#include <memory>
#include <utility>

namespace fl::server {

class FileOnDemand {
 public:
  /// `files` must outlive it.
  FileOnDemand(Files& files, std::filesystem::path path) : files_(files), path_(std::move(path)) {}

  /// The first bytes of the open file as memory, which all users at the same time share. Null if
  /// they can't be had so: then read the file.
  [[nodiscard]] std::shared_ptr<FileMapping> map(File& file, std::uint64_t bytes) const {
    const MutexLock lock(mutex_);
    if (auto mapping = mapping_.lock(); mapping && mapping->bytes().size() == bytes) return mapping;
    auto made = file.map(bytes);
    if (!made || !*made) return nullptr;
    std::shared_ptr<FileMapping> mapping = std::move(*made);
    mapping_ = mapping;
    return mapping;
  }

  /// The open file. All users at the same time share it.
  [[nodiscard]] Result<std::shared_ptr<File>> open() const {
    const MutexLock lock(mutex_);
    if (auto file = open_.lock()) return file;
    FL_TRY(std::shared_ptr<File> file, files_.open(path_, OpenMode::read));
    open_ = file;
    return file;
  }

 private:
  Files& files_;
  std::filesystem::path path_;
  mutable Mutex mutex_;
  mutable std::weak_ptr<File> open_ FL_GUARDED_BY(mutex_);
  mutable std::weak_ptr<FileMapping> mapping_ FL_GUARDED_BY(mutex_);
};

}  // namespace fl::server
