// SPDX-License-Identifier: Apache-2.0
// What a client does when a certificate is not valid by one end's clock: it asks the server for its
// clock, and reports both. A clock gets set, so such an error is never final.
#pragma once

#include "shared/base/async/asio.hpp"
#include "shared/base/error.hpp"
#include "shared/net/proxy.hpp"

#include <boost/asio/ssl/context.hpp>

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

/// Reaches the server, does the TLS handshake with `context` and asks for its clock, as Unix
/// seconds. Errors: those of connect_ws().
Awaitable<Result<double>> probe_server(net::any_io_executor executor, ServerAddress server,
                                       ProxyRules rules, net::ssl::context& context);

}  // namespace fl
