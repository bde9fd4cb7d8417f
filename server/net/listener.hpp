// The server's door: TCP, TLS, then one HTTP request that is either an enrolment (POST /v1/enroll,
// no client certificate) or the upgrade of a session (/v1/session, with one). Each connection has a
// strand of its own and limits::handshake_max for all of it.
#pragma once

#include "shared/base/async/asio.hpp"
#include "shared/base/error.hpp"
#include "shared/net/server_address.hpp"
#include "shared/wire/link.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <string>

namespace fl {

struct HttpAnswer {
  unsigned status = 200;
  std::string body;  // JSON.
};

/// What the door asks of the house. Called on connections' strands; must be safe from any thread.
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
  /// `acceptor`: bound, on a strand of its own.
  Listener(net::io_context& io, ConnectionHandler& reception, net::ip::tcp::acceptor acceptor)
      : io_(io), reception_(reception), acceptor_(std::move(acceptor)) {}

  /// Spawns the accept loop.
  void start();
  /// Any thread. Connections that are under way go on.
  void close();
  [[nodiscard]] int connections() const { return connections_; }

 private:
  Awaitable<void> accept();
  Awaitable<void> serve(net::ip::tcp::socket socket);

  net::io_context& io_;
  ConnectionHandler& reception_;
  net::ip::tcp::acceptor acceptor_;
  std::atomic<int> connections_ = 0;
  std::atomic<bool> closed_ = false;
};

/// Binds `acceptor` to HOST:PORT and listens; port 0 takes a free one. Errors name the address and
/// what to do. For the listener and the admin pages.
[[nodiscard]] Result<ServerAddress> bind_acceptor(net::ip::tcp::acceptor& acceptor,
                                                  const ServerAddress& address);

}  // namespace fl
