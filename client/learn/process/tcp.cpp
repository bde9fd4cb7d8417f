// SPDX-License-Identifier: Apache-2.0
#include "client/learn/process/tcp.hpp"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

namespace fl {

namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<Addresses> find_addresses(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.empty() ? nullptr : host.c_str(),
                                 std::to_string(port).c_str(), &hints, &found);
  if (failed != 0)
    return Error(Errc::not_found, fmt::format("host '{}': {}", host, gai_strerror(failed)));
  return Addresses(found, &freeaddrinfo);
}

bool is_loopback(const addrinfo& address) {
  if (address.ai_family == AF_INET) {
    const auto& number = reinterpret_cast<const sockaddr_in&>(*address.ai_addr).sin_addr;
    return (ntohl(number.s_addr) >> 24) == 127;
  }
  return address.ai_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(*address.ai_addr).sin6_addr) !=
             0;
}

void send_at_once(int socket) {
  const int yes = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
}

std::uint16_t port_of(int socket) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return 0;
  if (address.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

/// Connects a socket that does not block.
bool finish_connect(int socket, const addrinfo& address, TimePoint until) {
  if (connect(socket, address.ai_addr, address.ai_addrlen) == 0) return true;
  if (errno != EINPROGRESS) return false;
  if (!wait_for_socket(socket, POLLOUT, until - Clock::now())) {
    errno = ETIMEDOUT;
    return false;
  }
  int failure = 0;
  socklen_t bytes = sizeof failure;
  getsockopt(socket, SOL_SOCKET, SO_ERROR, &failure, &bytes);
  errno = failure;
  return failure == 0;
}

}  // namespace

Result<TcpListener> TcpListener::make(const std::string& host, std::uint16_t port,
                                      int waiting_max) {
  FL_TRY(const Addresses addresses, find_addresses(host, port, AI_PASSIVE));
  Descriptor made(socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (made.number() < 0) return errno_error("can't make a socket");
  const int yes = 1;
  setsockopt(made.number(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(made.number(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      listen(made.number(), waiting_max) != 0) {
    const std::string place = fmt::format("can't listen at {}:{}", host, port);
    if (errno == EADDRINUSE)
      return Error(Errc::conflict, place + ": another program has this port");
    return errno_error(place);
  }
  const std::uint16_t bound = port_of(made.number());
  return TcpListener(std::move(made), bound);
}

Descriptor TcpListener::accept(Duration wait) {
  Descriptor made = accept_connection(socket_.number(), wait);
  if (made.number() >= 0) send_at_once(made.number());
  return made;
}

sockaddr_storage peer_address(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (getpeername(socket.number(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return {};
  return address;
}

std::string own_address(int socket) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  std::array<char, NI_MAXHOST> text{};
  const bool is_known = getsockname(socket, reinterpret_cast<sockaddr*>(&address), &bytes) == 0 &&
                        getnameinfo(reinterpret_cast<const sockaddr*>(&address), bytes, text.data(),
                                    text.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  if (!is_known) return "";
  // A socket for both kinds of addresses writes those of IPv4 in its own way.
  constexpr std::string_view mapped = "::ffff:";
  std::string_view shown = text.data();
  if (shown.starts_with(mapped) && shown.find('.') != std::string_view::npos)
    shown.remove_prefix(mapped.size());
  std::string own(shown);
  return is_loopback(own) ? "" : own;
}

bool is_loopback(const std::string& host) {
  const auto addresses = find_addresses(host, 0, 0);
  if (!addresses) return false;
  for (const addrinfo* one = addresses->get(); one != nullptr; one = one->ai_next)
    if (!is_loopback(*one)) return false;
  return true;
}

bool leads_here(const std::string& host) {
  const auto addresses = find_addresses(host, 0, 0);
  if (!addresses) return false;
  for (const addrinfo* one = addresses->get(); one != nullptr; one = one->ai_next) {
    if (is_loopback(*one)) continue;
    const Descriptor made(socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (made.number() >= 0 && bind(made.number(), one->ai_addr, one->ai_addrlen) == 0) return true;
  }
  return false;
}

Result<Descriptor> connect_tcp(const std::string& host, std::uint16_t port, TimePoint until) {
  FL_TRY(const Addresses addresses, find_addresses(host, port, 0));
  std::string reason = "no address";
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    Descriptor made(socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (made.number() >= 0 && finish_connect(made.number(), *one, until)) {
      send_at_once(made.number());
      fcntl(made.number(), F_SETFL, 0);  // The socket blocks from now on.
      return made;
    }
    reason = std::strerror(errno);
  }
  return Error(Errc::unavailable, fmt::format("can't connect to {}:{}: {}", host, port, reason));
}

}  // namespace fl
