// SPDX-License-Identifier: Apache-2.0
// The admin pages, plain HTTP for this machine (or a proxy that authenticates): /healthz, /metrics
// (Prometheus text), /api/rounds and /api/choices (JSON). Read-only. On the io threads. It asks
// the engine on its strand and the store on its thread.
#pragma once

#include "server/history/store_thread.hpp"
#include "server/net/acceptor.hpp"
#include "server/net/listener.hpp"
#include "server/round/current_engine.hpp"
#include "shared/base/limits.hpp"

#include <boost/asio/ip/tcp.hpp>

#include <string>

namespace fl {

class Admin {
 public:
  /// `acceptor`: bound (bind_acceptor), on a strand of its own.
  Admin(net::io_context& io, const CurrentEngine& current, StoreThread& store,
        net::ip::tcp::acceptor acceptor)
      : current_(current),
        store_(store),
        acceptor_(io, std::move(acceptor), {"admin request", limits::admin_requests_max},
                  [this](net::ip::tcp::socket socket) { return serve(std::move(socket)); }) {}

  void start() { acceptor_.start(); }
  /// Any thread. Requests that are under way go on.
  void close() { acceptor_.close(); }

 private:
  Awaitable<void> serve(net::ip::tcp::socket socket);
  Awaitable<HttpAnswer> page(std::string target);

  const CurrentEngine& current_;
  StoreThread& store_;
  Acceptor acceptor_;
};

/// Prometheus text format 0.0.4.
[[nodiscard]] std::string format_metrics(const EngineStatus& status);

}  // namespace fl
