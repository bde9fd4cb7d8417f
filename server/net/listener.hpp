// SPDX-License-Identifier: Apache-2.0
// The server's door: TCP, TLS, then one HTTP request that is either an enrolment (POST /v1/enroll,
// no client certificate) or the upgrade of a session (/v1/session, with one). All of this must be
// done within limits::handshake_max.
//
// A connection is a socket and the bytes that have come until its whole ClientHello is there and
// there is a place for its handshake (doorway.hpp). Then it has a strand of its own.
#pragma once

#include "server/net/doorway.hpp"
#include "server/net/member_places.hpp"
#include "shared/base/async/asio.hpp"
#include "shared/base/error.hpp"
#include "shared/net/governor.hpp"
#include "shared/net/http.hpp"
#include "shared/net/tls_stream.hpp"
#include "shared/wire/link.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>

#include <functional>
#include <memory>
#include <string>

namespace fl::server {

/// The answer to a request to enrol.
struct Enrolment {
  unsigned status = 200;  // The status of the HTTP answer.
  std::string body;       // The answer's body, JSON.
  std::string member;     // The name of the client that has joined; empty after a refusal.
};

/// The parts of the server that a listener uses. Called on the connections' strands, so it must
/// be safe from any thread.
class ConnectionHandler {
 public:
  using Place = std::shared_ptr<MemberPlaces::Place>;

  virtual ~ConnectionHandler() = default;
  /// Returns the current TLS context. Certificates are renewed while the server runs.
  virtual std::shared_ptr<net::ssl::context> tls() = 0;
  virtual Awaitable<Enrolment> enrol(std::string body) = 0;
  /// Gives the holder of this certificate a place. An error says to the client why it gets none.
  virtual Awaitable<Result<Place>> admit(std::string name, std::string serial) = 0;
  /// Serves an authenticated session. Returns when the session is over.
  virtual Awaitable<void> serve(std::shared_ptr<Link> link, Place place, std::string name,
                                std::string serial) = 0;
};

class Listener {
 public:
  /// `governors`: the limits of all sessions together. `acceptor` is bound (bind_acceptor) and on a
  /// strand of its own. `io` must stop before the listener is destroyed.
  Listener(net::io_context& io, ConnectionHandler& handler, net::ip::tcp::acceptor acceptor,
           const Strangers::Limits& limits, Governors governors);

  void start() { doorway_.start(); }
  /// Accepts no more connections; those that exist go on. Any thread.
  void close() { doorway_.close(); }

 private:
  std::function<void()> begin(net::ip::tcp::socket socket, std::string first, Strangers::Id id);
  Awaitable<void> serve(TlsStream tls, Strangers::Id id);
  Awaitable<void> serve_session(TlsStream tls, HttpRequest request, Strangers::Id id);

  ConnectionHandler& handler_;
  net::ip::tcp::acceptor acceptor_;
  Governors governors_;
  Doorway<net::ip::tcp> doorway_;
};

}  // namespace fl::server
