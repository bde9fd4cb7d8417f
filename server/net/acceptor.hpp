// SPDX-License-Identifier: Apache-2.0
// The socket on which the server listens for clients.
#pragma once

#include "shared/base/async/asio.hpp"
#include "shared/net/server_address.hpp"

#include <boost/asio/ip/tcp.hpp>

namespace fl::server {

/// Binds `acceptor` to HOST:PORT and listens; port 0 takes a free one. Returns the real address.
/// Errors name the address and what to do.
[[nodiscard]] Result<ServerAddress> bind_acceptor(net::ip::tcp::acceptor& acceptor,
                                                  const ServerAddress& address);

}  // namespace fl::server
