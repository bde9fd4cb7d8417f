// SPDX-License-Identifier: Apache-2.0
// dial() through proxies that answer what they should not: a proxy of one connection, whose answer
// is given as text.
#include "shared/net/dial.hpp"

#include "shared/base/limits.hpp"

#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <initializer_list>
#include <string>
#include <vector>

namespace fl {
namespace {

using net::ip::tcp;

struct Outcome {
  std::string request;  // The request that the proxy received.
  Errc code = Errc::internal;
  std::string message;  // "" after success.
};

Awaitable<void> answer_once(tcp::acceptor& acceptor, std::string answer, std::string& request) {
  auto [accept_ec, socket] = co_await acceptor.async_accept(as_result);
  if (accept_ec) co_return;
  const auto [ec, bytes] =
      co_await net::async_read_until(socket, net::dynamic_buffer(request), "\r\n\r\n", as_result);
  if (ec || answer.empty()) co_return;
  co_await net::async_write(socket, net::buffer(answer), as_result);
  // Until the client has what it wants.
  std::array<char, 1> room;
  co_await socket.async_read_some(net::buffer(room), as_result);
}

Awaitable<void> dial_into(Outcome& outcome, std::string proxy, std::chrono::milliseconds limit) {
  net::ssl::context context(net::ssl::context::tlsv13_client);
  TlsStream stream(co_await net::this_coro::executor, context);
  stream.expires_after(limit);
  const Environment nothing = [](const char*) { return std::nullopt; };
  const ServerAddress server{"fed.example.org", 7443};
  const ProxyRules rules(proxy, nothing);
  const auto dialled = co_await dial(stream, server, rules);
  stream.close();
  if (dialled) co_return;
  outcome.code = dialled.error().code();
  outcome.message = dialled.error().message();
}

/// `login`: "USER:PASSWORD@" or "".
Outcome dial_through(std::string answer, const std::string& login = "",
                     std::chrono::milliseconds limit = std::chrono::seconds(5)) {
  net::io_context io;
  tcp::acceptor acceptor(io, {net::ip::make_address("127.0.0.1"), 0});
  Outcome outcome;
  const auto end = [](std::exception_ptr failure) { CHECK(!failure); };
  net::co_spawn(io, answer_once(acceptor, std::move(answer), outcome.request), end);
  net::co_spawn(
      io,
      dial_into(outcome,
                "http://" + login + "127.0.0.1:" + std::to_string(acceptor.local_endpoint().port()),
                limit),
      end);
  io.run();
  return outcome;
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("IPv6 and IPv4 addresses are tried in turn, the preferred kind first") {
  const auto order = [](std::initializer_list<const char*> found) {
    std::vector<tcp::endpoint> endpoints;
    for (const char* address : found) endpoints.emplace_back(net::ip::make_address(address), 443);
    std::string text;
    for (const auto& endpoint : in_turn(tcp::resolver::results_type::create(
             endpoints.begin(), endpoints.end(), "fed.example.org", "443")))
      text += endpoint.address().to_string() + " ";
    return text;
  };
  CHECK(order({}) == "");
  CHECK(order({"::1"}) == "::1 ");
  CHECK(order({"::1", "::2", "::3", "10.0.0.1"}) == "::1 10.0.0.1 ::2 ::3 ");
  CHECK(order({"10.0.0.1", "10.0.0.2", "::1", "::2", "::3"}) == "10.0.0.1 ::1 10.0.0.2 ::2 ::3 ");
  CHECK(order({"::1", "::2", "::3", "::4", "::5", "::6", "::7", "::8", "::9", "10.0.0.1"}) ==
        "::1 10.0.0.1 ::2 ::3 ::4 ::5 ::6 ::7 ");
  static_assert(limits::addresses_max == 8);
}

TEST_CASE("a proxy is asked for a tunnel to the server by its name") {
  for (const char* answer :
       {"HTTP/1.1 200 Connection established\r\n\r\n", "HTTP/1.0 200 OK\r\nVia: x\r\n\r\n",
        "HTTP/1.1 299 \r\nContent-Length: 5\r\n\r\n"}) {
    const Outcome outcome = dial_through(answer, "us%40er:pass:word@");
    CHECK(outcome.message == "");
    CHECK(contains(outcome.request, "CONNECT fed.example.org:7443 HTTP/1.1\r\n"));
    CHECK(contains(outcome.request, "Host: fed.example.org:7443\r\n"));
    // base64 of "us@er:pass:word".
    CHECK(contains(outcome.request, "Proxy-Authorization: Basic dXNAZXI6cGFzczp3b3Jk\r\n"));
  }
  CHECK(!contains(dial_through("HTTP/1.1 200 OK\r\n\r\n").request, "Proxy-Authorization"));
}

TEST_CASE("each answer that is no tunnel says what to do") {
  struct Row {
    std::string answer;
    std::string login;
    Errc code;
    const char* says;
  };
  const Row rows[] = {
      {"HTTP/1.1 407 X\r\nProxy-Authenticate: Basic realm=\"a\"\r\nContent-Length: 2\r\n\r\nno", "",
       Errc::conflict, "wants a user name and a password: write http://USER:PASSWORD@127.0.0.1:"},
      {"HTTP/1.1 407 X\r\nProxy-Authenticate: basic\r\n\r\n", "u:hidden@", Errc::conflict,
       "rejected the user name or the password"},
      {"HTTP/1.1 407 X\r\nProxy-Authenticate: NTLM\r\nProxy-Authenticate: Negotiate\r\n\r\n",
       "u:hidden@", Errc::conflict, "wants a login by NTLM, Negotiate, and Tributary knows Basic"},
      {"HTTP/1.1 401 Unauthorized\r\n\r\n", "u:hidden@", Errc::conflict,
       "rejected the user name or the password"},
      {"HTTP/1.1 403 Forbidden\r\n\r\n<html>", "", Errc::conflict,
       "allow CONNECT to fed.example.org:7443"},
      {"HTTP/1.1 302 Found\r\nLocation: http://login\r\n\r\n", "", Errc::conflict, "answered 302"},
      {"HTTP/1.1 503 Service Unavailable\r\n\r\n", "", Errc::unavailable,
       "it can't reach that server now"},
      {"", "", Errc::unavailable, "closed the connection without an answer"},
      {"HTTP/1.1 200", "", Errc::deadline, "did not answer within"},
      {"SSH-2.0-OpenSSH_9.2p1 Debian\r\n\r\n", "", Errc::unavailable,
       "does not answer as an HTTP proxy"},
      {"HTTP/1.1 200 OK\r\n\r\nhello", "", Errc::unavailable, "5 bytes of its own"},
      {"HTTP/1.1 200 OK\r\nX: " + std::string(limits::proxy_answer_bytes_max, 'x') + "\r\n\r\n", "",
       Errc::unavailable, "does not answer as an HTTP proxy: header limit exceeded"},
      {std::string("HTTP/1.1 500 \x1b[31mred\r\n\r\n"), "", Errc::unavailable, "bad reason"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.answer.substr(0, 80));
    const Outcome outcome = dial_through(row.answer, row.login, std::chrono::milliseconds(500));
    CHECK(outcome.code == row.code);
    CHECK_MESSAGE(contains(outcome.message, row.says), outcome.message);
    CHECK(contains(outcome.message, "(from --proxy)"));
    CHECK(!contains(outcome.message, "hidden"));
    CHECK(!contains(outcome.message, "\x1b"));
  }
}

TEST_CASE("a proxy that is down is told apart from a server that is down") {
  net::io_context io;
  Outcome outcome;
  // Nobody listens on port 1.
  net::co_spawn(io, dial_into(outcome, "http://127.0.0.1:1", std::chrono::seconds(5)),
                [](std::exception_ptr failure) { CHECK(!failure); });
  io.run();
  CHECK(outcome.code == Errc::unavailable);
  CHECK(contains(outcome.message, "connecting to the proxy http://127.0.0.1:1 (from --proxy)"));
}

}  // namespace
}  // namespace fl
