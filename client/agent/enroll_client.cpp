// SPDX-License-Identifier: Apache-2.0
#include "client/agent/enroll_client.hpp"

#include "shared/base/limits.hpp"
#include "shared/identity/enrolment.hpp"
#include "shared/net/dial.hpp"
#include "shared/net/http.hpp"
#include "shared/wire/server_clock.hpp"
#include "shared/wire/tls_context.hpp"

#include <fmt/format.h>

namespace fl::client {
namespace {

struct HttpAnswer {
  unsigned status = 0;
  std::string body;
};

Error deadline_error(const std::string& server) {
  return {Errc::deadline, "the server at " + server + " did not answer within " +
                              std::to_string(limits::handshake_max.count()) + " s"};
}

Error network_error(const boost::system::error_code& ec, const std::string& server,
                    std::string_view doing) {
  if (ec == beast::error::timeout) return deadline_error(server);
  // An answer that is not HTTP or too long is a permanent error; a broken connection is not.
  const bool is_http = ec.category() == http::make_error_code(http::error::body_limit).category();
  const bool is_cut = ec == http::error::end_of_stream || ec == http::error::partial_message;
  return {is_http && !is_cut ? Errc::protocol : Errc::unavailable,
          std::string(doing) + " " + server + ": " + ec.message()};
}

/// Connects and does the TLS handshake. The stream's deadline stays set for what follows.
Awaitable<Result<void>> connect(TlsStream& stream, ServerAddress server, ProxyRules rules,
                                net::ssl::context& context) {
  FL_CO_CHECK(co_await dial(stream, server, rules));
  if (!is_ip_address(server.host)) set_server_name(stream.ssl(), server.host);
  const auto [ec] = co_await stream.async_handshake(net::ssl::stream_base::client, as_result);
  if (ec == beast::error::timeout) co_return deadline_error(to_string(server));
  if (ec) {
    const Error error = handshake_error(stream.ssl(), ec, to_string(server));
    if (!is_time_error(stream.ssl(), ec)) co_return error;
    const auto executor = co_await net::this_coro::executor;
    co_return co_await explain_time_error(error, executor, server, rules, context);
  }
  co_return success();
}

/// Sends one request and reads the answer. Does not wait for close_notify, because the answer's
/// Content-Length shows that it is complete.
Awaitable<Result<HttpAnswer>> post(TlsStream& stream, const ServerAddress& server,
                                   std::string body) {
  std::string request = fmt::format(
      "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n"
      "Connection: close\r\n\r\n{}",
      enrolment_target, to_string(server), body.size(), body);
  if (const auto ec = co_await write_all(stream, std::move(request)); ec)
    co_return network_error(ec, to_string(server), "writing to");
  HttpResponse response;
  if (const auto ec = co_await read_http(stream, response, enrolment_bytes_max); ec)
    co_return network_error(ec, to_string(server), "reading the answer of");
  co_return HttpAnswer{response.result_int(), std::move(response.body())};
}

/// Checks that the authority in the answer is the token's.
Result<void> check_authority(const std::string& ca_pem, const JoinToken& token) {
  FL_TRY(const CertificatePtr ca, parse_certificate(ca_pem));
  FL_TRY(const Sha256 fingerprint, spki_fingerprint(*ca));
  if (fingerprint != token.ca_fingerprint)
    return Error(Errc::unauthenticated, "the server at " + to_string(token.server) +
                                            " sent another authority than the join token's");
  return {};
}

}  // namespace

Awaitable<Result<ClientIdentity>> enroll_over_https(JoinToken token, std::string name,
                                                    std::filesystem::path folder, Files& files,
                                                    ProxyRules rules) {
  EnrolmentRequest request;
  request.token_id = token.id_hex();
  request.secret = std::string(text_of(std::as_bytes(std::span(token.secret))));
  request.name = std::move(name);
  FL_CO_TRY(request.csr, ClientIdentity::request_certificate(files, folder));

  FL_CO_TRY(net::ssl::context context, pinning_client_context(token.ca_fingerprint));
  const auto executor = co_await net::this_coro::executor;
  TlsStream stream(executor, context);
  stream.expires_after(limits::handshake_max);
  FL_CO_CHECK(co_await connect(stream, token.server, std::move(rules), context));
  std::string body = to_json(request);
  const auto answer = co_await post(stream, token.server, std::move(body));
  if (!answer) co_return answer.error();

  FL_CO_TRY(const EnrolmentResponse response,
            parse_enrolment_response(answer->status, answer->body));
  FL_CO_CHECK(check_authority(response.ca, token));
  co_return ClientIdentity::finish_joining(files, folder, token.server, token.id_hex(),
                                           response.certificate, response.ca);
}

}  // namespace fl::client
