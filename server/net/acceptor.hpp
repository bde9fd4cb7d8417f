// SPDX-License-Identifier: Apache-2.0
// The accept loop of one listening socket: clients' or the admin pages'. Each connection is served
// on a strand of its own.
#pragma once

#include "shared/base/async/asio.hpp"
#include "shared/net/server_address.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>

namespace fl {

/// The pause after a connection could not be accepted, for want of file descriptors.
inline constexpr auto accept_pause = std::chrono::milliseconds(100);

class Acceptor {
 public:
  struct Options {
    std::string what;     // The name of a connection in the log, such as "admin request".
    int connections_max;  // At the same time. Others are closed at once.
  };
  /// Serves one connection. What it throws is logged.
  using Serve = std::function<Awaitable<void>(net::ip::tcp::socket)>;

  /// `acceptor`: bound (bind_acceptor), on a strand of its own. Must outlive its connections.
  Acceptor(net::io_context& io, net::ip::tcp::acceptor acceptor, Options options, Serve serve)
      : io_(io),
        acceptor_(std::move(acceptor)),
        options_(std::move(options)),
        serve_(std::move(serve)) {}

  /// Spawns the loop.
  void start();
  /// From any thread. Connections that are under way go on.
  void close();

 private:
  Awaitable<void> accept();

  net::io_context& io_;
  net::ip::tcp::acceptor acceptor_;
  Options options_;
  Serve serve_;
  std::atomic<int> connections_ = 0;
  std::atomic<bool> is_closed_ = false;
};

/// Binds `acceptor` to HOST:PORT and listens; port 0 takes a free one. Returns the real address.
/// Errors name the address and what to do.
[[nodiscard]] Result<ServerAddress> bind_acceptor(net::ip::tcp::acceptor& acceptor,
                                                  const ServerAddress& address);

}  // namespace fl
