// SPDX-License-Identifier: Apache-2.0
// An authority with its server and an enrolled client, and connected sockets.
#pragma once

#include "shared/net/tls_stream.hpp"
#include "shared/wire/tls_context.hpp"
#include "tests/identity/fixture.hpp"

namespace fl::test {

struct TlsWorld {
  TemporaryFolder temp;
  double now = Clock::unix_seconds();
  Authority authority = new_authority(temp / "ca");
  ServerCertificate certificate = authority.issue_server({"localhost"}, now).value();
  net::ssl::context server = server_context(certificate, authority).value();
  ClientIdentity alice = new_identity(authority, temp / "alice", "alice");

  net::ssl::context pinning() const {
    return pinning_client_context(authority.fingerprint()).value();
  }
};

/// The two ends of a TCP connection on this machine.
inline std::pair<net::ip::tcp::socket, net::ip::tcp::socket> socket_pair(net::io_context& io) {
  using net::ip::tcp;
  tcp::acceptor acceptor(io, {net::ip::make_address("127.0.0.1"), 0});
  tcp::socket near(io);
  near.connect(acceptor.local_endpoint());
  tcp::socket far = acceptor.accept();
  return {std::move(near), std::move(far)};
}

}  // namespace fl::test
