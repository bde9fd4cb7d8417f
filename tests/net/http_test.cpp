// SPDX-License-Identifier: Apache-2.0
// What one end of an HTTP connection may make the other keep: every part of a message has a limit.
#include "shared/net/http.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/write.hpp>

#include <doctest/doctest.h>

#include <optional>
#include <string>

namespace fl {
namespace {

/// Sends the text to read_http() over a pair of sockets, and returns how that ended.
beast::error_code read_back(const std::string& text, HttpRequest& request,
                            std::uint64_t body_bytes_max = 1 << 20) {
  net::io_context io;
  net::local::stream_protocol::socket ours(io);
  net::local::stream_protocol::socket theirs(io);
  net::local::connect_pair(ours, theirs);
  PlainStream stream{PlainSocket(std::move(theirs))};
  std::optional<beast::error_code> outcome;
  const auto read = [&]() -> Awaitable<void> {
    outcome = co_await read_http(stream, request, body_bytes_max);
  };
  net::co_spawn(io, read(), [](const std::exception_ptr& failure) {
    if (failure) std::rethrow_exception(failure);
  });
  // A reader that keeps everything takes all of the text and waits for more.
  net::async_write(ours, net::buffer(text), [](const beast::error_code&, std::size_t) {});
  for (int turns = 0; !outcome && turns < 100'000 && io.poll() > 0; ++turns) continue;
  if (!outcome) ours.close();
  io.run();
  REQUIRE(outcome);
  return *outcome;
}

const std::string head =
    "POST /v1/enroll HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

TEST_CASE("a message in chunks is read") {
  HttpRequest request;
  CHECK_FALSE(read_back(head + "3;a=b\r\nabc\r\n2\r\nde\r\n0\r\nA: b\r\n\r\n", request));
  CHECK(request.body() == "abcde");
  CHECK(read_back(head + "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", request, 4) ==
        http::error::body_limit);
}

TEST_CASE("a head, a chunk's first line and a trailer that never end are refused") {
  const std::string endless(8 * http_header_bytes_max, 'a');
  for (const std::string& text :
       {"GET / HTTP/1.1\r\nA: " + endless, head + "1;" + endless,
        head + "1\r\nx\r\n0\r\n" + endless, head + "1\r\nx\r\n0\r\nA: " + endless}) {
    CAPTURE(text.substr(0, 100));
    HttpRequest request;
    CHECK(read_back(text, request) == http::error::header_limit);
  }
}

}  // namespace
}  // namespace fl
