// SPDX-License-Identifier: Apache-2.0
// What a client of HTTP sends and what it makes of answers, with a service on a thread that says
// what the test wants. TLS is tested with the real server (tests/process/traces_test.py).
#include "server/traces/http_client.hpp"

#include "tests/support/print_result.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>

#include <doctest/doctest.h>

#include <optional>
#include <thread>

namespace fl {

using namespace fl::server;
namespace {

using tcp = net::ip::tcp;

/// Takes one connection, reads until the request has `until`, answers, and closes.
class Service {
 public:
  Service(std::string answer, std::string until)
      : thread_([this, answer = std::move(answer), until = std::move(until)] {
          tcp::socket socket = door_.accept();
          boost::system::error_code ec;
          if (!until.empty()) net::read_until(socket, net::dynamic_buffer(request), until, ec);
          if (!answer.empty()) net::write(socket, net::buffer(answer), ec);
          if (answer.empty())
            net::read(socket, net::dynamic_buffer(request), ec);  // Until the client is gone.
        }) {}
  [[nodiscard]] HttpUrl url() const {
    return {false, {"127.0.0.1", door_.local_endpoint().port()}, "/v1/traces?x=1"};
  }

  std::string request;

 private:
  net::io_context io_;
  tcp::acceptor door_{io_, {net::ip::make_address("127.0.0.1"), 0}};
  std::jthread thread_;
};

Awaitable<void> post(HttpClient& client, std::string body, Duration limit,
                     std::optional<Result<HttpClient::Answer>>& out) {
  out = co_await client.post("application/json", std::move(body), limit);
}

Result<HttpClient::Answer> answer_to(const HttpUrl& url, const std::string& body,
                                     Duration limit = std::chrono::seconds(10)) {
  const auto client = HttpClient::make({.url = url,
                                        .headers = {{"X-Team", "a"}},
                                        .authority_file = "",
                                        .proxies = {},
                                        .answer_bytes_max = 100})
                          .value();
  net::io_context io;
  std::optional<Result<HttpClient::Answer>> answer;
  net::co_spawn(io, post(*client, body, limit, answer), rethrow);
  io.run();
  return answer.value();
}

TEST_CASE("a request has all that HTTP wants, and its answer comes back whatever its status") {
  Service service(
      "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 7\r\nContent-Length: 5\r\n\r\nlater",
      "the body");
  const auto answer = answer_to(service.url(), "the body");
  REQUIRE(answer.has_value());
  CHECK(answer->status == 503);
  CHECK(answer->retry_after == "7");
  CHECK(answer->body == "later");
  CHECK(service.request.starts_with("POST /v1/traces?x=1 HTTP/1.1\r\nHost: 127.0.0.1:"));
  for (const char* header : {"\r\nContent-Type: application/json\r\n", "\r\nContent-Length: 8\r\n",
                             "\r\nX-Team: a\r\n", "\r\nConnection: close\r\n"})
    CHECK(service.request.find(header) != std::string::npos);
  CHECK(service.request.ends_with("\r\n\r\nthe body"));
}

TEST_CASE("an answer may come in chunks, or before the request is read") {
  Service chunked(
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
      "\r\n");
  CHECK(answer_to(chunked.url(), "x").value().body == "abc");
  Service hasty("HTTP/1.1 413 Payload Too Large\r\nContent-Length: 0\r\n\r\n", "POST");
  CHECK(answer_to(hasty.url(), "x").value().status == 413);
}

TEST_CASE("what is no answer is an error with its cause") {
  const auto code_of = [](const std::string& said, Duration limit = std::chrono::seconds(10)) {
    Service service(said, "\r\n\r\n");
    const auto answer = answer_to(service.url(), "x", limit);
    REQUIRE(!answer);
    CHECK(answer.error().message().find("127.0.0.1:") != std::string::npos);
    return answer.error().code();
  };
  CHECK(code_of("SSH-2.0-OpenSSH_9.2\r\n") == Errc::protocol);
  CHECK(code_of("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf") == Errc::unavailable);
  CHECK(code_of("HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n" + std::string(101, 'x')) ==
        Errc::protocol);
  CHECK(code_of("", std::chrono::milliseconds(50)) == Errc::deadline);
  HttpUrl nowhere;
  {
    net::io_context io;
    tcp::acceptor gone(io, {net::ip::make_address("127.0.0.1"), 0});
    nowhere.address = {"127.0.0.1", gone.local_endpoint().port()};
  }
  CHECK(answer_to(nowhere, "x").error().code() == Errc::unavailable);
}

TEST_CASE("a file of authorities that is none is refused, with its name") {
  const auto client = HttpClient::make({.url = {},
                                        .headers = {},
                                        .authority_file = "/nowhere/ca.pem",
                                        .proxies = {},
                                        .answer_bytes_max = 0});
  REQUIRE(!client);
  CHECK(client.error().code() == Errc::invalid_input);
  CHECK(client.error().message().find("/nowhere/ca.pem") != std::string::npos);
}

}  // namespace
}  // namespace fl
