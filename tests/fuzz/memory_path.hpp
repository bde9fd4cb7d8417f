// SPDX-License-Identifier: Apache-2.0
// A file in memory that has a path, for readers that open files by path.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"

#include <filesystem>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

namespace fl::fuzz {

class MemoryPath {
 public:
  explicit MemoryPath(Bytes contents) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    FL_ASSERT(::write(fd_, contents.data(), contents.size()) ==
              static_cast<ssize_t>(contents.size()));
  }
  ~MemoryPath() { ::close(fd_); }
  MemoryPath(const MemoryPath&) = delete;
  MemoryPath& operator=(const MemoryPath&) = delete;

  [[nodiscard]] std::filesystem::path path() const {
    return "/proc/self/fd/" + std::to_string(fd_);
  }

 private:
  int fd_;
};

}  // namespace fl::fuzz
