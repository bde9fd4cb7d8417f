// SPDX-License-Identifier: Apache-2.0
#include "server/net/places.hpp"

#include "shared/base/limits.hpp"

#include <sys/resource.h>

#include <algorithm>

namespace fl {

Places places_for(std::uint64_t files_max) {
  const std::uint64_t free =
      files_max > limits::files_reserved ? files_max - limits::files_reserved : 0;
  const auto part = [](std::uint64_t files, std::size_t most) {
    return static_cast<std::size_t>(std::clamp<std::uint64_t>(files, 1, most));
  };
  return {part(free / 2, limits::sessions_max), part(free / 4, limits::strangers_max)};
}

std::uint64_t raise_files_max() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return limits::files_reserved;
  const rlimit raised{limit.rlim_max, limit.rlim_max};
  return ::setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised.rlim_cur : limit.rlim_cur;
}

}  // namespace fl
