// SPDX-License-Identifier: Apache-2.0
#include "server/admin/probes.hpp"

#include "shared/base/json.hpp"
#include "shared/base/limits.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace fl::server {

namespace {

PageAnswer answer_unless(std::string_view trouble) {
  if (!trouble.empty()) return refusal(503, trouble);
  return json_answer({{"status", "ok"}});
}

}  // namespace

void Probes::set_trouble(std::string why) {
  const MutexLock lock(mutex_);
  trouble_ = std::move(why);
}

std::optional<PageAnswer> Probes::answer(std::string_view path) const {
  if (path != "/livez" && path != "/readyz") return std::nullopt;
  const Duration silent = pulse_.age();
  if (silent > limits::pulse_silence_max) {
    return answer_unless(
        fmt::format("the engine, or the disk that it waits for, has not answered for {:.0f} s",
                    seconds(silent)));
  }
  if (path == "/livez") return answer_unless("");
  const MutexLock lock(mutex_);
  return answer_unless(trouble_);
}

std::string trouble_with_history(const std::filesystem::path& state) {
  for (const auto& path : {state, state / "history.sqlite"}) {
    if (::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0)
      return fmt::format("the history can't be written: {}", std::strerror(errno));
  }
  struct statvfs disk {};
  if (::statvfs(state.c_str(), &disk) != 0)
    return fmt::format("the disk of the history can't be read: {}", std::strerror(errno));
  const std::uint64_t free = std::uint64_t{disk.f_bavail} * disk.f_frsize;
  if (free >= limits::ready_bytes_free_min) return "";
  return fmt::format("the disk of the history has {} MiB free, and less than {} is too little",
                     free >> 20, limits::ready_bytes_free_min >> 20);
}

}  // namespace fl::server
