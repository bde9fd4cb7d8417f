// SPDX-License-Identifier: Apache-2.0
#include "shared/base/io/files_max.hpp"

#include "shared/base/limits.hpp"

#include <sys/resource.h>

namespace fl {

std::uint64_t raise_files_max() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return limits::files_reserved;
  const rlimit raised{limit.rlim_max, limit.rlim_max};
  return ::setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised.rlim_cur : limit.rlim_cur;
}

}  // namespace fl
