// SPDX-License-Identifier: Apache-2.0
#include "server/net/session_errors.hpp"

#include <utility>

namespace fl::server {

wire::Bye::Cause cause_of(const Error& error) {
  switch (error.code()) {
    case Errc::invalid_input:
    case Errc::unauthenticated: return wire::Bye::REFUSED;
    case Errc::unavailable: return wire::Bye::RESTARTING;
    case Errc::cancelled: return wire::Bye::FINISHED;
    default: return wire::Bye::BROKEN;
  }
}

bool is_fault(const Error& error) {
  switch (error.code()) {
    case Errc::protocol:
    case Errc::too_large:
    case Errc::corrupt:
    case Errc::invalid_input: return true;
    default: return false;
  }
}

Result<void> as_own_fault(Result<void> sent) {
  if (sent || !is_fault(sent.error())) return sent;
  return Error(Errc::io, sent.error().message());
}

LogLevel level_of(const Error& error) {
  switch (error.code()) {
    case Errc::cancelled:
      return LogLevel::debug;  // The client waits for another run, and asks until that begins.
    case Errc::unavailable: return LogLevel::info;
    default: return LogLevel::warn;
  }
}

}  // namespace fl::server
