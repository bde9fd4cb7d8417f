// SPDX-License-Identifier: Apache-2.0
#include "shared/base/state_lock.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace fl {

Result<StateLock> StateLock::take(const std::filesystem::path& folder) {
  const auto path = folder / "lock";
  StateLock lock(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  if (lock.fd_ < 0) return errno_error(path.string());
  if (::flock(lock.fd_, LOCK_EX | LOCK_NB) != 0) {
    return Error(Errc::conflict,
                 fmt::format("another process uses {}: stop it, or choose another --state",
                             folder.string()));
  }
  return lock;
}

StateLock::~StateLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace fl
