// SPDX-License-Identifier: Apache-2.0
// What a client does when a certificate is not valid by one end's clock: it asks the server for its
// clock, and reports both. A clock gets set, so such an error is never final.
#pragma once

#include "shared/base/async/asio.hpp"
#include "shared/base/error.hpp"
#include "shared/net/proxy.hpp"

#include <boost/asio/ssl/context.hpp>

#include <optional>
#include <string>

namespace fl {

/// Whether the handshake may have failed because of a clock: a certificate is not valid yet, or not
/// any more, in the eyes of this end or of the server.
[[nodiscard]] bool is_time_error(const SSL& ssl, const boost::system::error_code& ec);

/// Returns an `unavailable` error that has `error`'s message and the clocks of both ends. Asks the
/// server for its clock over a connection that checks the server's certificate with `context`, but
/// not its dates, and presents none of ours.
Awaitable<Error> explain_time_error(Error error, net::any_io_executor executor,
                                    ServerAddress server, ProxyRules rules,
                                    net::ssl::context& context);

/// The result of probing a server.
struct ServerProbe {
  /// The parts that are probed, in this order.
  enum class Stage {
    port,         // The port takes connections.
    tls,          // It speaks TLS 1.3.
    certificate,  // It is the federation's server.
    server,       // It takes our certificate, if we have one, and answers.
  };
  Stage stage = Stage::port;   // The stage that failed, or the last one.
  std::optional<Error> error;  // The errors of connect_ws().
  double clock_s = 0;          // The server's clock, in Unix seconds, if there is no error.
};

/// Reaches the server, does the TLS handshake with `context` and asks for its clock.
Awaitable<ServerProbe> probe_server(net::any_io_executor executor, ServerAddress server,
                                    ProxyRules rules, net::ssl::context& context);

}  // namespace fl
