// SPDX-License-Identifier: Apache-2.0
#include "server/net/acceptor.hpp"

#include <fmt/format.h>
#include "shared/base/documents.hpp"

namespace fl::server {

namespace {

using tcp = net::ip::tcp;
constexpr std::uint16_t first_free_port = 1024;

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
        fmt::format("can't listen on {}: the port is taken ('ss -ltnp' names the program that has "
                    "it); --listen HOST:0 takes a free one",
                    place));
  }
  if (ec == net::error::access_denied && address.port < first_free_port) {
    return Error(
        Errc::io,
        fmt::format("can't listen on {}: this user may not take ports below {}. Choose "
                    "another --listen, or give the service the right to (\"Port 443\" in {})",
                    place, first_free_port, document_path("docs/guide/install.md")));
  }
  if (ec == boost::system::errc::address_not_available) {
    return Error(Errc::invalid_input,
                 fmt::format("can't listen on {}: this machine has no such address. --listen "
                             "0.0.0.0:{} takes all that it has; --advertise says what clients "
                             "connect to",
                             place, address.port));
  }
  if (ec) return Error(Errc::io, fmt::format("can't listen on {}: {}", place, ec.message()));
  return ServerAddress{address.host, acceptor.local_endpoint().port()};
}

}  // namespace fl::server
