// SPDX-License-Identifier: Apache-2.0
#include "shared/base/error.hpp"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

namespace fl {

std::string_view to_string(Errc code) {
  switch (code) {
    case Errc::invalid_input: return "invalid input";
    case Errc::protocol: return "protocol error";
    case Errc::unauthenticated: return "not authenticated";
    case Errc::not_found: return "not found";
    case Errc::conflict: return "conflict";
    case Errc::too_large: return "too large";
    case Errc::corrupt: return "corrupt";
    case Errc::io: return "I/O error";
    case Errc::no_space: return "no space";
    case Errc::unavailable: return "unavailable";
    case Errc::cancelled: return "cancelled";
    case Errc::deadline: return "deadline passed";
    case Errc::internal: return "internal error";
  }
  return "unknown error";
}

Error errno_error(std::string_view what) {
  const int number = errno;
  const Errc code = is_no_space(number)                    ? Errc::no_space
                    : number == ENOENT                     ? Errc::not_found
                    : number == EMFILE || number == ENFILE ? Errc::unavailable
                                                           : Errc::io;
  return {code, std::string(what) + ": " + std::strerror(number) + file_limit_text(number)};
}

bool is_no_space(int number) { return number == ENOSPC || number == EDQUOT || number == EFBIG; }

std::string file_limit_text(int number) {
  rlimit limit{};
  const bool has_limit =
      number == EFBIG && ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  if (!has_limit) return "";
  return "; this process may write files of up to " + std::to_string(limit.rlim_cur) +
         " bytes (ulimit -f, or systemd's LimitFSIZE): raise that limit";
}

}  // namespace fl
