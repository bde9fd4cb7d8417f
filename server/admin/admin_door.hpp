// SPDX-License-Identifier: Apache-2.0
// Where the admin pages are served: a TCP port or a Unix socket.
#pragma once

#include "shared/base/async/asio.hpp"
#include "shared/base/error.hpp"
#include "shared/net/http.hpp"

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/io_context.hpp>

#include <filesystem>
#include <string>

namespace fl::server {

class AdminDoor {
 public:
  /// Opens "HOST:PORT" (port 0: a free one) or "unix:PATH", where a socket that is left over is
  /// replaced. Only this user may connect to a Unix socket. Errors name the place and what to do.
  static Result<AdminDoor> open(net::io_context& io, const std::string& place);
  AdminDoor(AdminDoor&&) noexcept = default;
  ~AdminDoor();

  /// The real place: "127.0.0.1:40123" or "unix:/run/fl/admin.sock".
  [[nodiscard]] const std::string& place() const { return place_; }
  using Acceptor = net::basic_socket_acceptor<PlainProtocol>;
  [[nodiscard]] Acceptor& acceptor() { return acceptor_; }  // The acceptor has a strand of its own.
  /// On the acceptor's strand.
  void close();

 private:
  explicit AdminDoor(Acceptor acceptor) : acceptor_(std::move(acceptor)) {}
  Result<void> listen(const PlainProtocol::endpoint& endpoint);

  Acceptor acceptor_;
  std::string place_;
  std::filesystem::path path_;  // The Unix socket; "": a TCP port.
};

}  // namespace fl::server
