// One HTTP/1.1 message read or written, over TLS or plain TCP. Beast's parsers do the parsing; its
// composed reads and writes are left out, as each costs the compiler ten seconds wherever it is
// used. The stream's deadline (expires_after) is the caller's.
#pragma once

#include "shared/base/async/clock.hpp"
#include "shared/net/tls_stream.hpp"

#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <string>
#include <string_view>

namespace fl {

namespace http = beast::http;
using HttpRequest = http::request<http::string_body>;
using HttpResponse = http::response<http::string_body>;

inline constexpr std::uint32_t http_header_bytes_max = 16 << 10;

/// Reads one message; what follows it is lost. http::error::body_limit: it has more than
/// `body_bytes_max`; http::error::end_of_stream: the peer closed instead.
Awaitable<beast::error_code> read_http(TlsStream& stream, HttpRequest& request,
                                       std::uint64_t body_bytes_max);
Awaitable<beast::error_code> read_http(TlsStream& stream, HttpResponse& response,
                                       std::uint64_t body_bytes_max);
Awaitable<beast::error_code> read_http(beast::tcp_stream& stream, HttpRequest& request,
                                       std::uint64_t body_bytes_max);

Awaitable<beast::error_code> write_all(TlsStream& stream, std::string text);
Awaitable<beast::error_code> write_all(beast::tcp_stream& stream, std::string text);

/// An answer after which the connection closes.
[[nodiscard]] std::string http_answer(unsigned status, std::string_view content_type,
                                      std::string_view body);

}  // namespace fl
