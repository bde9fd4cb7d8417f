// SPDX-License-Identifier: Apache-2.0
#include "client/learn/process/tensor_folder.hpp"

#include "shared/base/io/bytes.hpp"
#include "shared/base/io/digest.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <unistd.h>
#include <system_error>
#include <utility>

namespace fl {

namespace {

namespace fs = std::filesystem;

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

}  // namespace

TensorFolder::TensorFolder(fs::path small, fs::path on_disk)
    : small_(std::move(small)), on_disk_(std::move(on_disk)), large_(small_) {}

TensorFolder::TensorFolder(TensorFolder&& other) noexcept
    : small_(std::exchange(other.small_, {})),
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
      memory /
      fmt::format("tributary-{}-{}", geteuid(),
                  Digest::of(bytes_of(std::string_view(home.native()))).hex().substr(0, 12));
  // A crash may have left it.
  fs::remove_all(on_disk, failure);
  const auto made = make_private(in_memory);
  if (made) return TensorFolder(in_memory, on_disk);
  log_info("tensors for the trainer lie in {}: {}", on_disk.string(), made.error().message());
  FL_CHECK(make_private(on_disk));
  return TensorFolder(on_disk, on_disk);
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
