// SPDX-License-Identifier: Apache-2.0
// TCP connections, such as those between the agent of a site and its ranks, with blocking calls
// that have a time limit.
#pragma once

#include "client/learn/process/socket_line.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/error.hpp"

#include <sys/socket.h>

#include <cstdint>
#include <string>

namespace fl {

class TcpListener {
 public:
  /// Listens at `host`, a name or an address of this machine; "" means all of them. Port 0: the
  /// system chooses one. The system keeps up to `waiting_max` connections until they are accepted.
  /// Errors: not_found (no such host), conflict (the port is taken), io.
  [[nodiscard]] static Result<TcpListener> make(const std::string& host, std::uint16_t port,
                                                int waiting_max = 128);

  [[nodiscard]] std::uint16_t port() const { return port_; }
  /// The socket that listens; readable while a connection waits.
  [[nodiscard]] int number() const { return socket_.number(); }
  /// The next connection; its descriptor is -1 if there is none after `wait`. One thread at a time.
  [[nodiscard]] Descriptor accept(Duration wait);

 private:
  TcpListener(Descriptor socket, std::uint16_t port) : socket_(std::move(socket)), port_(port) {}

  Descriptor socket_;
  std::uint16_t port_;
};

/// The address at the other end of a connection, of the family AF_UNSPEC if that end is gone.
[[nodiscard]] sockaddr_storage peer_address(const Descriptor& socket);

/// This end's address in numbers, by which the other end has reached it; "" if it is this machine's
/// alone, or not known.
[[nodiscard]] std::string own_address(int socket);

/// Whether all addresses of `host` are this machine's alone (127.0.1.1, ::1). False, if it has
/// none.
[[nodiscard]] bool is_loopback(const std::string& host);

/// Whether a name has an address of this machine that others can reach: not 127.0.1.1, nor one that
/// the machine had once.
[[nodiscard]] bool leads_here(const std::string& host);

/// Errors: not_found (no such host), unavailable (nobody listens there, or not by `until`).
[[nodiscard]] Result<Descriptor> connect_tcp(const std::string& host, std::uint16_t port,
                                             TimePoint until);

}  // namespace fl
