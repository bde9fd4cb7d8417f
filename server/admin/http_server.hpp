// The admin pages, plain HTTP for this machine (or a proxy that authenticates): /healthz, /metrics
// (Prometheus text), /api/rounds and /api/choices (JSON). Read-only. On the io threads. It asks
// the engine on its strand and the store on its thread.
#pragma once

#include "server/net/listener.hpp"
#include "server/round/current_engine.hpp"

#include <boost/asio/ip/tcp.hpp>

#include <atomic>
#include <memory>

namespace fl {

class Admin {
 public:
  /// `acceptor`: bound (bind_acceptor), on a strand of its own.
  Admin(net::io_context& io, const CurrentEngine& current, StoreThread& store,
        net::ip::tcp::acceptor acceptor)
      : io_(io), current_(current), store_(store), acceptor_(std::move(acceptor)) {}

  void start();
  void close();

 private:
  Awaitable<void> accept();
  Awaitable<void> serve(net::ip::tcp::socket socket);
  Awaitable<HttpAnswer> page(std::string target);

  net::io_context& io_;
  const CurrentEngine& current_;
  StoreThread& store_;
  net::ip::tcp::acceptor acceptor_;
  std::atomic<bool> closed_ = false;
  std::atomic<int> requests_ = 0;
};

/// Prometheus text format 0.0.4.
[[nodiscard]] std::string format_metrics(const EngineStatus& status);

}  // namespace fl
