// SPDX-License-Identifier: Apache-2.0
#include "shared/net/http.hpp"

#include <boost/beast/http/status.hpp>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <array>
#include <ctime>

namespace fl {

namespace {

template <class Stream, class Message>
Awaitable<beast::error_code> read(Stream& stream, Message& message, std::uint64_t body_bytes_max) {
  constexpr bool is_request = Message::is_request::value;
  http::parser<is_request, http::string_body> parser;
  parser.header_limit(http_header_bytes_max);
  parser.body_limit(body_bytes_max);
  parser.eager(true);
  std::array<char, 4096> room;
  std::string unread;
  for (;;) {
    const auto [read_ec, bytes] = co_await stream.async_read_some(net::buffer(room), as_result);
    beast::error_code ec;
    if (read_ec == net::error::eof) {
      if (!parser.got_some()) co_return http::error::end_of_stream;
      parser.put_eof(ec);
      if (ec) co_return ec;
      break;
    }
    if (read_ec) co_return read_ec;
    unread.append(room.data(), bytes);
    const std::size_t used = parser.put(net::const_buffer(unread.data(), unread.size()), ec);
    if (ec && ec != http::error::need_more) co_return ec;
    unread.erase(0, used);
    if (parser.is_done()) break;
    // What is left is the beginning of a head, of a chunk's first line or of a trailer. Beast
    // limits only the first of these.
    if (unread.size() > http_header_bytes_max) co_return http::error::header_limit;
  }
  message = parser.release();
  co_return beast::error_code();
}

template <class Stream>
Awaitable<beast::error_code> write(Stream& stream, std::string_view text) {
  while (!text.empty()) {
    const auto [ec, bytes] =
        co_await stream.async_write_some(net::const_buffer(text.data(), text.size()), as_result);
    if (ec) co_return ec;
    text.remove_prefix(bytes);
  }
  co_return beast::error_code();
}

}  // namespace

Awaitable<beast::error_code> read_http(TlsStream& stream, HttpRequest& request,
                                       std::uint64_t body_bytes_max) {
  co_return co_await read(stream, request, body_bytes_max);
}

Awaitable<beast::error_code> read_http(TlsStream& stream, HttpResponse& response,
                                       std::uint64_t body_bytes_max) {
  co_return co_await read(stream, response, body_bytes_max);
}

Awaitable<beast::error_code> read_http(PlainStream& stream, HttpRequest& request,
                                       std::uint64_t body_bytes_max) {
  co_return co_await read(stream, request, body_bytes_max);
}

Awaitable<beast::error_code> read_http(PlainStream& stream, HttpResponse& response,
                                       std::uint64_t body_bytes_max) {
  co_return co_await read(stream, response, body_bytes_max);
}

Awaitable<beast::error_code> write_all(TlsStream& stream, std::string text) {
  co_return co_await write(stream, text);
}

Awaitable<beast::error_code> write_all(PlainStream& stream, std::string text) {
  co_return co_await write(stream, text);
}

std::string http_date(double unix_seconds) {
  const auto whole = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  if (::gmtime_r(&whole, &parts) == nullptr) return "unknown";
  return fmt::format("{:%a, %d %b %Y %H:%M:%S} GMT", parts);
}

std::optional<double> parse_http_date(const std::string& text) {
  std::tm parts{};
  const char* const end = ::strptime(text.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  if (end == nullptr || *end != '\0') return std::nullopt;
  return static_cast<double>(::timegm(&parts));
}

std::string http_answer(unsigned status, std::string_view content_type, std::string_view body) {
  const std::string_view reason = http::obsolete_reason(static_cast<http::status>(status));
  return fmt::format(
      "HTTP/1.1 {} {}\r\nDate: {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n"
      "Connection: close\r\n\r\n{}",
      status, reason, http_date(Clock::unix_seconds()), content_type, body.size(), body);
}

}  // namespace fl
