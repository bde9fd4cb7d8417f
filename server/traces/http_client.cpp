// SPDX-License-Identifier: Apache-2.0
#include "server/traces/http_client.hpp"

#include "shared/base/version.hpp"
#include "shared/net/dial.hpp"

#include <boost/asio/ssl/verify_mode.hpp>
#include <boost/beast/core/string.hpp>

#include <fmt/format.h>

#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>

namespace fl::server {
namespace {

/// Headers of HTTP itself; request_of() writes them.
constexpr std::array<std::string_view, 6> own_headers{
    "host", "user-agent", "content-type", "content-length", "connection", "transfer-encoding"};

Error network_error(const beast::error_code& ec, std::string_view doing, const std::string& whom) {
  if (ec == beast::error::timeout) return {Errc::deadline, whom + " did not answer in time"};
  const bool is_http = ec.category() == http::make_error_code(http::error::body_limit).category();
  const bool is_cut = ec == http::error::end_of_stream || ec == http::error::partial_message;
  return {is_http && !is_cut ? Errc::protocol : Errc::unavailable,
          fmt::format("{} {}: {}", doing, whom, ec.message())};
}

/// A service that refuses a request may answer before it has read all of it, and then close: so a
/// failure to write counts only if there is no answer either.
template <class Stream>
Awaitable<Result<HttpClient::Answer>> exchange(Stream& stream, std::string request,
                                               std::string whom, std::uint64_t answer_bytes_max) {
  const auto unwritten = co_await write_all(stream, std::move(request));
  HttpResponse response;
  const auto unread = co_await read_http(stream, response, answer_bytes_max);
  if (unread && unwritten) co_return network_error(unwritten, "writing to", whom);
  if (unread) co_return network_error(unread, "reading the answer of", whom);
  HttpClient::Answer answer;
  answer.status = response.result_int();
  answer.retry_after = std::string(response[http::field::retry_after]);
  answer.body = std::move(response.body());
  co_return answer;
}

}  // namespace

Result<void> check_http_header(std::string_view name, std::string_view value) {
  // RFC 9110, section 5.6.2 (token) and 5.5 (field values).
  const auto is_token = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  };
  if (name.empty() || !std::ranges::all_of(name, is_token))
    return Error(Errc::invalid_input, "a header's name has letters, digits and '-' only");
  const auto is_same = [name](std::string_view own) { return beast::iequals(name, own); };
  if (std::ranges::any_of(own_headers, is_same))
    return Error(Errc::invalid_input, fmt::format("the header {} can't be set", name));
  const auto is_plain = [](char c) { return (c >= ' ' && c != '\x7f') || c == '\t' || c < 0; };
  if (!std::ranges::all_of(value, is_plain))
    return Error(Errc::invalid_input,
                 fmt::format("the value of the header {} has a control character", name));
  return {};
}

Result<std::unique_ptr<HttpClient>> HttpClient::make(Options options) {
  net::ssl::context context(net::ssl::context::tls_client);
  SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_2_VERSION);
  boost::system::error_code ec;
  context.set_verify_mode(net::ssl::verify_peer, ec);
  if (!options.authority_file.empty()) {
    context.load_verify_file(options.authority_file, ec);
    if (ec)
      return Error(Errc::invalid_input, fmt::format("{} can't be read as certificates in PEM: {}",
                                                    options.authority_file, ec.message()));
  } else {
    context.set_default_verify_paths(ec);
    if (ec)
      return Error(Errc::io,
                   "the authorities that this machine trusts can't be read: " + ec.message());
  }
  return std::unique_ptr<HttpClient>(new HttpClient(std::move(options), std::move(context)));
}

std::string HttpClient::request_of(const std::string& content_type, const std::string& body) const {
  const HttpUrl& url = options_.url;
  const bool is_usual_port = url.address.port == (url.is_tls ? 443 : 80);
  std::string host = to_string(url.address);
  if (is_usual_port) host.resize(host.rfind(':'));
  std::string request = fmt::format(
      "POST {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: tributary/{}\r\nContent-Type: {}\r\n"
      "Content-Length: {}\r\nConnection: close\r\n",
      url.target, host, software_version, content_type, body.size());
  for (const auto& [name, value] : options_.headers)
    request += fmt::format("{}: {}\r\n", name, value);
  return request + "\r\n" + body;
}

Awaitable<Result<void>> HttpClient::shake_hands(TlsStream& stream) {
  const std::string& host = options_.url.address.host;
  SSL& ssl = stream.ssl();
  const bool is_set = is_ip_address(host)
                          ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(&ssl), host.c_str()) == 1
                          : SSL_set1_host(&ssl, host.c_str()) == 1 &&
                                SSL_set_tlsext_host_name(&ssl, host.c_str()) == 1;
  if (!is_set) co_return Error(Errc::internal, "OpenSSL does not take the name " + host);
  const auto [ec] = co_await stream.async_handshake(net::ssl::stream_base::client, as_result);
  if (!ec) co_return success();
  const std::string whom = to_string(options_.url);
  const long verdict = SSL_get_verify_result(&ssl);
  if (verdict != X509_V_OK)
    co_return Error(Errc::unauthenticated,
                    fmt::format("the certificate of {} is not accepted: {}", whom,
                                X509_verify_cert_error_string(verdict)));
  co_return network_error(ec, "TLS handshake with", whom);
}

Awaitable<Result<HttpClient::Answer>> HttpClient::post(std::string content_type, std::string body,
                                                       Duration limit) {
  const auto executor = co_await net::this_coro::executor;
  const HttpUrl& url = options_.url;
  std::string whom = to_string(url);
  TlsStream stream(executor, context_);
  stream.expires_after(limit);
  ProxyRules proxies;
  if (url.is_tls) proxies = options_.proxies;
  const auto reached = co_await dial(stream, url.address, std::move(proxies));
  if (!reached && reached.error().code() == Errc::deadline)
    co_return Error(Errc::deadline, whom + " did not answer in time");
  FL_CO_CHECK(reached);
  std::string request = request_of(content_type, body);
  if (url.is_tls) {
    FL_CO_CHECK(co_await shake_hands(stream));
    co_return co_await exchange(stream, std::move(request), std::move(whom),
                                options_.answer_bytes_max);
  }
  const auto deadline = stream.deadline();
  PlainStream plain{PlainSocket(std::move(stream.socket()))};
  plain.expires_at(deadline);
  co_return co_await exchange(plain, std::move(request), std::move(whom),
                              options_.answer_bytes_max);
}

}  // namespace fl::server
