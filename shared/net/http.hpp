// SPDX-License-Identifier: Apache-2.0
// Reads and writes HTTP/1.1 messages over TLS, or over a plain TCP or Unix socket. Beast's parsers
// do the parsing. Beast's composed read and write operations are not used, because each adds ten
// seconds to the compile time of a file. The caller sets the stream's deadline (expires_after).
#pragma once

#include "shared/base/async/clock.hpp"
#include "shared/net/tls_stream.hpp"

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace fl {

namespace http = beast::http;
using HttpRequest = http::request<http::string_body>;
using HttpResponse = http::response<http::string_body>;

/// A stream socket of any family, without TLS.
using PlainProtocol = net::generic::stream_protocol;
using PlainSocket = PlainProtocol::socket;
using PlainStream = beast::basic_stream<PlainProtocol>;

/// A message's head, a chunk's first line and a trailer have at most so many bytes each.
inline constexpr std::uint32_t http_header_bytes_max = 16 << 10;

/// Reads one message; bytes after it are dropped. Errors: http::error::body_limit when the body has
/// more than `body_bytes_max` bytes, http::error::header_limit, http::error::end_of_stream when the
/// peer closed the connection before a message, and those of the parser and the stream.
Awaitable<beast::error_code> read_http(TlsStream& stream, HttpRequest& request,
                                       std::uint64_t body_bytes_max);
Awaitable<beast::error_code> read_http(TlsStream& stream, HttpResponse& response,
                                       std::uint64_t body_bytes_max);
Awaitable<beast::error_code> read_http(PlainStream& stream, HttpRequest& request,
                                       std::uint64_t body_bytes_max);
Awaitable<beast::error_code> read_http(PlainStream& stream, HttpResponse& response,
                                       std::uint64_t body_bytes_max);

Awaitable<beast::error_code> write_all(TlsStream& stream, std::string text);
Awaitable<beast::error_code> write_all(PlainStream& stream, std::string text);

/// "Sun, 06 Nov 1994 08:49:37 GMT" (RFC 9110, section 5.6.7), and back.
[[nodiscard]] std::string http_date(double unix_seconds);
[[nodiscard]] std::optional<double> parse_http_date(const std::string& text);

/// A complete HTTP response, dated now, with the header `Connection: close`.
[[nodiscard]] std::string http_answer(unsigned status, std::string_view content_type,
                                      std::string_view body);

}  // namespace fl
