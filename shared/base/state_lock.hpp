// STATE/lock, so that two programs never share a state. Held for the life of the object.
#pragma once

#include "shared/base/error.hpp"

#include <filesystem>
#include <utility>

namespace fl {

class StateLock {
 public:
  /// `conflict` when another program holds it. The folder must exist.
  static Result<StateLock> take(const std::filesystem::path& folder);
  StateLock(StateLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  StateLock& operator=(StateLock&&) = delete;
  ~StateLock();

 private:
  explicit StateLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace fl
