// SPDX-License-Identifier: Apache-2.0
#include "shared/base/error.hpp"

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
  const Errc code = number == ENOSPC || number == EDQUOT   ? Errc::no_space
                    : number == ENOENT                     ? Errc::not_found
                    : number == EMFILE || number == ENFILE ? Errc::unavailable
                                                           : Errc::io;
  return {code, std::string(what) + ": " + std::strerror(number)};
}

}  // namespace fl
