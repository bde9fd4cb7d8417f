// SPDX-License-Identifier: Apache-2.0
#include "shared/base/service_manager.hpp"

#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace fl {

namespace {

/// Takes a variable out of the environment; "" if it is not set.
std::string take_variable(const char* name) {
  const char* const value = std::getenv(name);
  std::string text = value == nullptr ? "" : value;
  ::unsetenv(name);
  return text;
}

std::optional<std::uint64_t> whole_number_of(std::string_view text) {
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  if (read.ec != std::errc() || read.ptr != end || number == 0) return std::nullopt;
  return number;
}

/// Why the datagram was not sent; 0 if it was.
int send_datagram(const std::string& name, std::string_view text) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() >= sizeof address.sun_path || (name.front() != '/' && name.front() != '@'))
    return EINVAL;
  std::memcpy(address.sun_path, name.data(), name.size());
  const bool is_abstract = name.front() == '@';
  if (is_abstract) address.sun_path[0] = '\0';
  // An abstract name ends where the address ends, a path with a zero.
  const std::size_t length = offsetof(sockaddr_un, sun_path) + name.size() + (is_abstract ? 0 : 1);
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return errno;
  const auto sent =
      ::sendto(socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
               reinterpret_cast<const sockaddr*>(&address), static_cast<socklen_t>(length));
  const int failure = sent < 0 ? errno : 0;
  ::close(socket);
  return failure;
}

}  // namespace

ServiceManager ServiceManager::take_from_environment() {
  std::string socket = take_variable("NOTIFY_SOCKET");
  const auto watchdog_us = whole_number_of(take_variable("WATCHDOG_USEC"));
  const auto pid = whole_number_of(take_variable("WATCHDOG_PID"));
  // A process that stands between the manager and us may have inherited the watchdog.
  const bool is_ours = !pid || *pid == static_cast<std::uint64_t>(::getpid());
  if (!watchdog_us || !is_ours) return {std::move(socket), std::nullopt};
  return {std::move(socket), std::chrono::microseconds(*watchdog_us)};
}

void ServiceManager::reloading() const {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const auto us = static_cast<std::uint64_t>(now.tv_sec) * 1'000'000 +
                  static_cast<std::uint64_t>(now.tv_nsec) / 1000;
  send(fmt::format("RELOADING=1\nMONOTONIC_USEC={}", us));
}

void ServiceManager::status(std::string_view text) const {
  // A line end would begin another assignment.
  send(fmt::format("STATUS={}", text.substr(0, text.find('\n'))));
}

void ServiceManager::feed_watchdog() const {
  if (watchdog_) send("WATCHDOG=1");
}

void ServiceManager::send(std::string_view lines) const {
  if (!is_present()) return;
  if (const int failure = send_datagram(socket_, lines); failure != 0) {
    log_warn("can't tell the service manager '{}' at {}: {}", lines, socket_,
             std::strerror(failure));
  }
}

}  // namespace fl
