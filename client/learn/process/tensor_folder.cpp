// SPDX-License-Identifier: Apache-2.0
#include "client/learn/process/tensor_folder.hpp"

#include "shared/base/io/bytes.hpp"
#include "shared/base/io/digest.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/base/state_lock.hpp"

#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <fcntl.h>
#include <unistd.h>
#include <chrono>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace fl {

namespace {

namespace fs = std::filesystem;

constexpr int lock_attempts_max = 100;  // Two seconds.
constexpr auto lock_pause = std::chrono::milliseconds(20);

/// Makes an empty folder that only this user can enter. What was there is removed, if it is ours.
Result<void> make_private(const fs::path& path) {
  struct stat found {};
  if (lstat(path.c_str(), &found) == 0) {
    if (!S_ISDIR(found.st_mode) || found.st_uid != geteuid())
      return Error(Errc::conflict,
                   fmt::format("{} is not a folder of this user: remove it", path.string()));
    std::error_code failure;
    fs::remove_all(path, failure);
  }
  if (mkdir(path.c_str(), 0700) != 0) return errno_error("can't make " + path.string());
  return {};
}

/// The lock of a folder in memory, which its program holds as long as it lives.
fs::path lock_of(const fs::path& folder) { return folder / "lock"; }

Descriptor open_lock(const fs::path& folder) {
  return Descriptor(open(lock_of(folder).c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
}

/// Whether the descriptor is that of the lock which the folder has now. Another program may have
/// removed the folder and made it anew before we had the lock.
bool is_lock_of(const Descriptor& lock, const fs::path& folder) {
  const auto is_named = still_names(lock_of(folder), lock.number());
  return is_named && *is_named;
}

/// Removes a folder whose program is gone. True: it is removed. A folder without a lock is left: it
/// is just being made, or of a release that had no locks and may be in use.
bool remove_if_left(const fs::path& folder) {
  struct stat found {};
  if (lstat(folder.c_str(), &found) != 0 || !S_ISDIR(found.st_mode) || found.st_uid != geteuid())
    return false;
  const Descriptor lock = open_lock(folder);
  if (lock.number() < 0 || flock(lock.number(), LOCK_EX | LOCK_NB) != 0) return false;
  if (!is_lock_of(lock, folder)) return false;
  std::error_code failure;
  fs::remove_all(folder, failure);
  return !failure;
}

/// Takes the lock that a folder has; number -1: it has none. Another program that starts holds it
/// while it removes the folder, as one whose program is gone.
Result<Descriptor> take_lock(const fs::path& folder) {
  for (int i = 0; i < lock_attempts_max; ++i) {
    if (i > 0) std::this_thread::sleep_for(lock_pause);
    Descriptor lock = open_lock(folder);
    const bool is_free = lock.number() < 0 ||
                         (flock(lock.number(), LOCK_EX | LOCK_NB) == 0 && is_lock_of(lock, folder));
    if (is_free) return lock;
  }
  return Error(Errc::conflict, folder.string() + " is in use by another process");
}

/// Makes the folder in memory, and its lock. The lock gets its name when it is held.
Result<Descriptor> make_locked(const fs::path& folder) {
  FL_TRY(const Descriptor held, take_lock(folder));
  FL_CHECK(make_private(folder));
  const fs::path fresh = folder / "lock.new";
  Descriptor lock(open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const bool is_made = lock.number() >= 0 && flock(lock.number(), LOCK_EX | LOCK_NB) == 0 &&
                       ::rename(fresh.c_str(), lock_of(folder).c_str()) == 0;
  if (!is_made) return errno_error("can't lock " + folder.string());
  return lock;
}

std::string prefix_of_user() { return fmt::format("tributary-{}-", geteuid()); }

}  // namespace

TensorFolder::TensorFolder(fs::path small, fs::path on_disk, Descriptor lock)
    : lock_(std::move(lock)),
      small_(std::move(small)),
      on_disk_(std::move(on_disk)),
      large_(small_) {}

TensorFolder::TensorFolder(TensorFolder&& other) noexcept
    : lock_(std::move(other.lock_)),
      small_(std::exchange(other.small_, {})),
      on_disk_(std::exchange(other.on_disk_, {})),
      large_(std::exchange(other.large_, {})) {}

TensorFolder::~TensorFolder() {
  for (const fs::path& path : {small_, large_}) {
    std::error_code failure;
    if (!path.empty()) fs::remove_all(path, failure);
  }
}

Result<TensorFolder> TensorFolder::make(const fs::path& state, const fs::path& memory) {
  std::error_code failure;
  const fs::path home = fs::weakly_canonical(fs::absolute(state), failure);
  const fs::path on_disk = home / "trainer";
  const fs::path in_memory =
      memory / (prefix_of_user() +
                Digest::of(bytes_of(std::string_view(home.native()))).hex().substr(0, 12));
  // A crash may have left them.
  fs::remove_all(on_disk, failure);
  remove_left(memory);
  auto made = make_locked(in_memory);
  if (made) return TensorFolder(in_memory, on_disk, std::move(*made));
  log_info("tensors for the trainer lie in {}: {}", on_disk.string(), made.error().message());
  FL_CHECK(make_private(on_disk));
  return TensorFolder(on_disk, on_disk, Descriptor());
}

void TensorFolder::remove_left(const fs::path& memory) {
  std::error_code failure;
  std::size_t looked_at = 0;
  for (fs::directory_iterator entry(memory, failure), end;
       !failure && entry != end && looked_at < limits::tensor_folders_max;
       entry.increment(failure)) {
    if (!entry->path().filename().string().starts_with(prefix_of_user())) continue;
    ++looked_at;
    if (remove_if_left(entry->path()))
      log_info("removed {}, which a program that was killed has left", entry->path().string());
  }
}

Result<void> TensorFolder::make_room(std::uint64_t bytes) {
  std::error_code failure;
  const auto space = fs::space(small_, failure);
  const bool has_room = small_ == on_disk_ || (!failure && space.available >= bytes);
  if (has_room) {
    large_ = small_;
    return {};
  }
  log_info("{} has {} MB left, and tensors for the trainer take up to {} MB: they lie in {}",
           small_.string(), failure ? 0 : space.available >> 20, bytes >> 20, on_disk_.string());
  if (large_ != on_disk_) FL_CHECK(make_private(on_disk_));
  large_ = on_disk_;
  return {};
}

}  // namespace fl
