// SPDX-License-Identifier: Apache-2.0
// The lock file STATE/lock, by which two processes never use one state folder at the same time.
// Server, client and fl-sim take it at start-up and hold it for the life of this object. The
// operating system releases it when the process ends, however it ends.
#pragma once

#include "shared/base/error.hpp"

#include <filesystem>
#include <utility>

namespace fl {

class StateLock {
 public:
  /// Takes the lock without waiting. The folder must exist. `conflict`: another process holds it.
  static Result<StateLock> take(const std::filesystem::path& folder);
  StateLock(StateLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  StateLock& operator=(StateLock&&) = delete;
  ~StateLock();

 private:
  explicit StateLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace fl
