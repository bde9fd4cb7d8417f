// SPDX-License-Identifier: Apache-2.0
#include "shared/wire/server_clock.hpp"

#include "shared/base/async/clock.hpp"
#include "shared/base/limits.hpp"
#include "shared/identity/authority.hpp"
#include "shared/net/dial.hpp"
#include "shared/net/http.hpp"
#include "shared/wire/tls_context.hpp"

#include <fmt/format.h>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <boost/asio/ssl/error.hpp>

#include <cmath>
#include <optional>
#include <utility>

namespace fl {

namespace {

constexpr std::size_t answer_bytes_max = 4 << 10;

/// Asks for the server's clock, in Unix seconds, after the handshake. `ec`, unless it is null, gets
/// the error of the connection.
Awaitable<std::optional<double>> ask_clock(TlsStream& stream, beast::error_code* ec = nullptr) {
  std::string request = "GET / HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n";
  auto failure = co_await write_all(stream, std::move(request));
  HttpResponse response;
  if (!failure) failure = co_await read_http(stream, response, answer_bytes_max);
  if (ec != nullptr) *ec = failure;
  if (failure) co_return std::nullopt;
  const auto date = response[http::field::date];
  co_return parse_http_date(std::string(date.data(), date.size()));
}

/// Asks for the clock over a new connection, which does not check the dates of certificates.
Awaitable<std::optional<double>> server_clock(net::any_io_executor executor, ServerAddress server,
                                              ProxyRules rules, net::ssl::context& context) {
  TlsStream stream(executor, context);
  SSL& ssl = stream.ssl();
  X509_VERIFY_PARAM_set_flags(SSL_get0_param(&ssl), X509_V_FLAG_NO_CHECK_TIME);
  SSL_certs_clear(&ssl);
  stream.expires_after(limits::handshake_max);
  const auto dialled = co_await dial(stream, std::move(server), std::move(rules));
  if (!dialled) co_return std::nullopt;
  const auto [tls_ec] = co_await stream.async_handshake(net::ssl::stream_base::client, as_result);
  if (tls_ec) co_return std::nullopt;
  auto clock = co_await ask_clock(stream);
  co_return clock;
}

}  // namespace

bool is_time_error(const SSL& ssl, const boost::system::error_code& ec) {
  const long verdict = SSL_get_verify_result(&ssl);
  if (verdict == X509_V_ERR_CERT_NOT_YET_VALID || verdict == X509_V_ERR_CERT_HAS_EXPIRED)
    return true;
  if (verdict != X509_V_OK || ec.category() != net::error::get_ssl_category()) return false;
  const int alert = ERR_GET_REASON(static_cast<unsigned long>(ec.value())) - SSL_AD_REASON_OFFSET;
  // OpenSSL sends the second for a certificate that is not valid yet.
  return alert == SSL_AD_CERTIFICATE_EXPIRED || alert == SSL_AD_BAD_CERTIFICATE;
}

Awaitable<Error> explain_time_error(Error error, net::any_io_executor executor,
                                    ServerAddress server, ProxyRules rules,
                                    net::ssl::context& context) {
  const auto theirs =
      co_await server_clock(std::move(executor), std::move(server), std::move(rules), context);
  const double ours = Clock::unix_seconds();
  std::string text =
      fmt::format("{}. This machine's clock says {}", error.message(), http_date(ours));
  if (!theirs) {
    text += "; the server's is not known";
  } else if (std::abs(*theirs - ours) > clock_skew_s) {
    text += fmt::format(", the server's {}: set the one that is wrong", http_date(*theirs));
  } else {
    text += fmt::format(
        ", the server's {}. If both are right, the certificate has expired: join "
        "again with a new token",
        http_date(*theirs));
  }
  co_return Error(Errc::unavailable, std::move(text));
}

Awaitable<ServerProbe> probe_server(net::any_io_executor executor, ServerAddress server,
                                    ProxyRules rules, net::ssl::context& context) {
  using Stage = ServerProbe::Stage;
  ServerProbe probe;
  TlsStream stream(executor, context);
  stream.expires_after(limits::handshake_max);
  const auto dialled = co_await dial(stream, server, rules);
  if (!dialled) {
    probe.error = dialled.error();
    co_return probe;
  }
  if (!is_ip_address(server.host)) set_server_name(stream.ssl(), server.host);
  auto [ec] = co_await stream.async_handshake(net::ssl::stream_base::client, as_result);
  const bool is_trusted = SSL_get_verify_result(&stream.ssl()) == X509_V_OK;
  probe.stage = !ec ? Stage::server : is_trusted ? Stage::tls : Stage::certificate;
  std::optional<double> clock;
  // The server's verdict about our certificate comes after our side of the handshake.
  if (!ec) clock = co_await ask_clock(stream, &ec);
  if (clock) {
    probe.clock_s = *clock;
    co_return probe;
  }
  probe.error = ec ? handshake_error(stream.ssl(), ec, to_string(server))
                   : Error(Errc::protocol, to_string(server) +
                                               " is not a Tributary server: its answer "
                                               "does not have its time");
  if (ec && is_time_error(stream.ssl(), ec))
    probe.error = co_await explain_time_error(*probe.error, executor, server, rules, context);
  co_return probe;
}

}  // namespace fl
