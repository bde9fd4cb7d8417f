// SPDX-License-Identifier: Apache-2.0
#include "server/admin/admin_door.hpp"

#include "shared/net/server_address.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/strand.hpp>

#include <fmt/format.h>

#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <utility>

namespace fl::server {

namespace {

using tcp = net::ip::tcp;
namespace fs = std::filesystem;

constexpr std::string_view unix_prefix = "unix:";

Result<tcp::endpoint> endpoint_of(net::io_context& io, const ServerAddress& address) {
  boost::system::error_code ec;
  tcp::resolver resolver(io);
  const auto found =
      resolver.resolve(address.host, std::to_string(address.port), tcp::resolver::passive, ec);
  if (ec || found.empty())
    return Error(Errc::invalid_input,
                 fmt::format("can't listen on {}: {}", to_string(address), ec.message()));
  return found.begin()->endpoint();
}

/// Removes a socket that an earlier server has left. Any other file with this name stays.
Result<void> remove_old_socket(const fs::path& path) {
  std::error_code ec;
  const fs::file_status status = fs::symlink_status(path, ec);
  if (!fs::exists(status)) return {};
  if (!fs::is_socket(status)) {
    return Error(Errc::conflict, fmt::format("can't listen on {}{}: there is a file by that name",
                                             unix_prefix, path.string()));
  }
  fs::remove(path, ec);
  return {};
}

}  // namespace

Result<AdminDoor> AdminDoor::open(net::io_context& io, const std::string& place) {
  AdminDoor door{Acceptor(net::make_strand(io))};
  door.place_ = place;
  if (place.starts_with(unix_prefix)) {
    const fs::path path = place.substr(unix_prefix.size());
    if (path.empty() || path.string().size() >= sizeof(sockaddr_un::sun_path)) {
      return Error(Errc::invalid_input, fmt::format("'{}': the path must have 1 to {} bytes", place,
                                                    sizeof(sockaddr_un::sun_path) - 1));
    }
    FL_CHECK(remove_old_socket(path));
    // Other users must not even connect. The mask is the process's; no other thread runs yet.
    const mode_t before = ::umask(S_IRWXG | S_IRWXO);
    const auto listening = door.listen(net::local::stream_protocol::endpoint(path.string()));
    ::umask(before);
    if (!listening) return listening.error();
    door.path_ = path;
    return door;
  }
  FL_TRY(ServerAddress address, parse_listen_address(place));
  FL_TRY(const tcp::endpoint endpoint, endpoint_of(io, address));
  FL_CHECK(door.listen(endpoint));
  tcp::endpoint bound;
  const auto real = door.acceptor_.local_endpoint();
  std::memcpy(bound.data(), real.data(), real.size());
  address.port = bound.port();
  door.place_ = to_string(address);
  return door;
}

Result<void> AdminDoor::listen(const PlainProtocol::endpoint& endpoint) {
  boost::system::error_code ec;
  acceptor_.open(endpoint.protocol(), ec);
  if (!ec) acceptor_.set_option(net::socket_base::reuse_address(true), ec);
  if (!ec) acceptor_.bind(endpoint, ec);
  if (!ec) acceptor_.listen(net::socket_base::max_listen_connections, ec);
  if (ec == net::error::address_in_use)
    return Error(Errc::conflict, fmt::format("can't listen on {}: the port is taken", place_));
  if (ec) return Error(Errc::io, fmt::format("can't listen on {}: {}", place_, ec.message()));
  return {};
}

AdminDoor::~AdminDoor() { close(); }

void AdminDoor::close() {
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  std::error_code gone;
  if (!path_.empty()) fs::remove(std::exchange(path_, fs::path()), gone);
}

}  // namespace fl::server
