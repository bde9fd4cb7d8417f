// SPDX-License-Identifier: Apache-2.0
#include "server/net/acceptor.hpp"
#include <fmt/format.h>

namespace fl {

namespace {

using tcp = net::ip::tcp;

}  // namespace

Result<ServerAddress> bind_acceptor(tcp::acceptor& acceptor, const ServerAddress& address) {
  const auto place = to_string(address);
  boost::system::error_code ec;
  tcp::resolver resolver(acceptor.get_executor());
  const auto found =
      resolver.resolve(address.host, std::to_string(address.port), tcp::resolver::passive, ec);
  if (ec || found.empty())
    return Error(Errc::invalid_input, fmt::format("can't listen on {}: {}", place, ec.message()));
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) acceptor.set_option(net::socket_base::reuse_address(true), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec) acceptor.listen(net::socket_base::max_listen_connections, ec);
  if (ec == net::error::address_in_use) {
    return Error(
        Errc::conflict,
        fmt::format("can't listen on {}: the port is taken; --listen HOST:0 takes a free one",
                    place));
  }
  if (ec) return Error(Errc::io, fmt::format("can't listen on {}: {}", place, ec.message()));
  return ServerAddress{address.host, acceptor.local_endpoint().port()};
}

}  // namespace fl
