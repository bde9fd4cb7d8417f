// SPDX-License-Identifier: Apache-2.0
// The server's door: TCP, TLS, then one HTTP request that is either an enrolment (POST /v1/enroll,
// no client certificate) or the upgrade of a session (/v1/session, with one). Each connection has a
// strand of its own and limits::handshake_max for all of it.
#pragma once

#include "server/net/acceptor.hpp"
#include "shared/base/async/asio.hpp"
#include "shared/base/error.hpp"
#include "shared/base/limits.hpp"
#include "shared/wire/link.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>

#include <memory>
#include <string>

namespace fl {

struct HttpAnswer {
  unsigned status = 200;
  std::string body;  // JSON.
};

/// The parts of the server that a listener uses. Called on the connections' strands, so it must
/// be safe from any thread.
class ConnectionHandler {
 public:
  virtual ~ConnectionHandler() = default;
  /// The TLS context of now: certificates are renewed while the server runs.
  virtual std::shared_ptr<net::ssl::context> tls() = 0;
  virtual Awaitable<HttpAnswer> enrol(std::string body) = 0;
  /// Whether the holder of this certificate may come in; the error's text is the answer.
  virtual Awaitable<Result<void>> admit(std::string name, std::string serial) = 0;
  /// An authenticated session begins. Returns when it is over.
  virtual Awaitable<void> serve(std::shared_ptr<Link> link, std::string name,
                                std::string serial) = 0;
};

class Listener {
 public:
  /// `acceptor`: bound (bind_acceptor), on a strand of its own.
  Listener(net::io_context& io, ConnectionHandler& handler, net::ip::tcp::acceptor acceptor)
      : handler_(handler),
        acceptor_(io, std::move(acceptor), {"connection", static_cast<int>(limits::sessions_max)},
                  [this](net::ip::tcp::socket socket) { return serve(std::move(socket)); }) {}

  void start() { acceptor_.start(); }
  /// Any thread. Connections that are under way go on.
  void close() { acceptor_.close(); }

 private:
  Awaitable<void> serve(net::ip::tcp::socket socket);

  ConnectionHandler& handler_;
  Acceptor acceptor_;
};

}  // namespace fl
