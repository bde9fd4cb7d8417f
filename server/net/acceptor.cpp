// SPDX-License-Identifier: Apache-2.0
#include "server/net/acceptor.hpp"

#include "shared/base/async/clock.hpp"
#include "shared/base/log.hpp"

#include <boost/asio/strand.hpp>

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

void Acceptor::start() { net::co_spawn(acceptor_.get_executor(), accept(), rethrow); }

void Acceptor::close() {
  is_closed_ = true;
  net::post(acceptor_.get_executor(), [this] {
    boost::system::error_code ignored;
    acceptor_.close(ignored);
  });
}

Awaitable<void> Acceptor::accept() {
  while (!is_closed_) {
    auto strand = net::make_strand(io_);
    auto [ec, socket] = co_await acceptor_.async_accept(net::any_io_executor(strand), as_result);
    if (is_closed_) co_return;
    if (ec) {
      // Most likely there are no file descriptors left. What waits in the backlog is served when
      // some are free again.
      log_warn("accept: {}", ec.message());
      co_await sleep_for(accept_pause);
      continue;
    }
    if (connections_ >= options_.connections_max) {
      log_warn("closed a new {}: {} are open, which is the limit", options_.what,
               options_.connections_max);
      continue;
    }
    ++connections_;
    net::co_spawn(strand, serve_(std::move(socket)), [this](const std::exception_ptr& failure) {
      --connections_;
      try {
        if (failure) std::rethrow_exception(failure);
      } catch (const std::exception& error) {
        log_error("a {} ended by an exception: {}", options_.what, error.what());
      }
    });
  }
}

}  // namespace fl
