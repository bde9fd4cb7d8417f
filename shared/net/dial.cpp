// SPDX-License-Identifier: Apache-2.0
#include "shared/net/dial.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/printable.hpp"
#include "shared/base/version.hpp"

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>

#include <fmt/format.h>

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace fl {
namespace {

namespace http = beast::http;
using tcp = net::ip::tcp;

/// An HTTP proxy's answer to CONNECT.
struct ProxyAnswer {
  unsigned status = 0;
  std::string reason;
  std::string challenges;  // The text of all Proxy-Authenticate headers.

  [[nodiscard]] bool lets_through() const { return status >= 200 && status < 300; }
};

Error timeout_error(std::string_view whom) {
  return {Errc::deadline,
          fmt::format("{} did not answer within {} s", whom, limits::handshake_max.count())};
}

/// An error of the network. `whom`: the server, or the proxy.
Error network_error(const beast::error_code& ec, std::string_view doing, std::string_view whom) {
  if (ec == beast::error::timeout) return timeout_error(whom);
  return {Errc::unavailable, fmt::format("{} {}: {}", doing, whom, ec.message())};
}

/// Looks a name up and connects. `whom` names it in errors.
Awaitable<Result<void>> connect_to(TlsStream& stream, ServerAddress address, std::string whom) {
  using namespace net::experimental::awaitable_operators;
  tcp::resolver resolver(stream.get_executor());
  net::steady_timer timer(stream.get_executor(), stream.deadline());
  const std::string port = std::to_string(address.port);
  auto outcome = co_await (resolver.async_resolve(address.host, port, as_result) ||
                           timer.async_wait(as_result));
  if (outcome.index() == 1) co_return timeout_error(whom);
  const auto& [ec, found] = std::get<0>(outcome);
  if (ec) co_return network_error(ec, "looking up", whom);
  const auto failure = co_await stream.connect(in_turn(found));
  if (failure) co_return network_error(failure, "connecting to", whom);
  co_return success();
}

std::string base64(std::string_view text) {
  std::string result((text.size() + 2) / 3 * 4 + 1, '\0');
  const int bytes = ::EVP_EncodeBlock(reinterpret_cast<unsigned char*>(result.data()),
                                      reinterpret_cast<const unsigned char*>(text.data()),
                                      static_cast<int>(text.size()));
  result.resize(static_cast<std::size_t>(bytes));
  return result;
}

/// Sends CONNECT and reads the head of the answer. The bytes behind the head belong to the tunnel.
Awaitable<Result<ProxyAnswer>> ask_proxy(TlsStream& stream, Proxy proxy, std::string target) {
  const std::string whom = "the proxy " + proxy.shown();
  std::string request =
      fmt::format("CONNECT {0} HTTP/1.1\r\nHost: {0}\r\nUser-Agent: tributary/{1}\r\n", target,
                  software_version);
  if (proxy.credentials)
    request += "Proxy-Authorization: Basic " + base64(*proxy.credentials) + "\r\n";
  request += "\r\n";
  if (const auto ec = co_await stream.write_plain(std::move(request)); ec)
    co_return network_error(ec, "writing to", whom);

  http::response_parser<http::empty_body> parser;
  parser.skip(true);  // The body of an answer to CONNECT is never needed.
  parser.header_limit(static_cast<std::uint32_t>(limits::proxy_answer_bytes_max));
  std::string unread;
  while (!parser.is_header_done()) {
    std::array<char, 1024> room;
    const auto [ec, bytes] = co_await stream.read_plain(net::buffer(room));
    if (ec == net::error::eof)
      co_return Error(Errc::unavailable,
                      fmt::format("{} closed the connection without an answer", whom));
    if (ec) co_return network_error(ec, "reading the answer of", whom);
    unread.append(room.data(), bytes);
    beast::error_code wrong;
    unread.erase(0, parser.put(net::buffer(unread), wrong));
    if (wrong && wrong != http::error::need_more)
      co_return Error(Errc::unavailable, fmt::format("{} does not answer as an HTTP proxy: {}",
                                                     whom, wrong.message()));
  }
  ProxyAnswer answer;
  answer.status = parser.get().result_int();
  answer.reason = std::string(parser.get().reason());
  const auto [begin, end] = parser.get().equal_range(http::field::proxy_authenticate);
  for (auto header = begin; header != end; ++header) {
    if (!answer.challenges.empty()) answer.challenges += ", ";
    answer.challenges += std::string(header->value());
  }
  // In a tunnel the client speaks first.
  if (answer.lets_through() && !unread.empty())
    co_return Error(Errc::unavailable, fmt::format("{} sent {} bytes of its own into the tunnel",
                                                   whom, unread.size()));
  co_return answer;
}

bool offers_basic(std::string_view challenges) {
  constexpr std::string_view basic = "basic";
  const auto same = [](char a, char b) { return (a | 0x20) == (b | 0x20); };
  return std::search(challenges.begin(), challenges.end(), basic.begin(), basic.end(), same) !=
         challenges.end();
}

Error login_error(const Proxy& proxy, const ProxyAnswer& answer) {
  const std::string offered = printable(answer.challenges, limits::reason_bytes_max);
  if (!answer.challenges.empty() && !offers_basic(answer.challenges))
    return {
        Errc::conflict,
        fmt::format("the proxy {} wants a login by {}, and Tributary knows Basic only: ask for an "
                    "exception, or run a helper on this machine that logs in (cntlm, px) and "
                    "name that as the proxy",
                    proxy.shown(), offered)};
  if (proxy.credentials)
    return {Errc::conflict,
            fmt::format("the proxy {} rejected the user name or the password", proxy.shown())};
  return {Errc::conflict,
          fmt::format("the proxy {} wants a user name and a password: write "
                      "http://USER:PASSWORD@{}, best into the variable HTTPS_PROXY or as "
                      "proxy = \"...\" into a file for --config that only you can read, because "
                      "other users of this machine see the command line",
                      proxy.shown(), to_string(proxy.address))};
}

/// The error of an answer that is not "2xx: you are through".
Error refusal(const Proxy& proxy, const ProxyAnswer& answer, const std::string& target) {
  // tinyproxy answers a wrong password by 401.
  if (answer.status == 407 || answer.status == 401) return login_error(proxy, answer);
  const std::string said =
      fmt::format("the proxy {} answered {} {} when asked for {}", proxy.shown(), answer.status,
                  printable(answer.reason, limits::reason_bytes_max), target);
  if (answer.status >= 500)
    return {Errc::unavailable,
            said + ": it can't reach that server now, or does not know its name"};
  return {Errc::conflict,
          said + ": it does not let us through; ask whoever runs it to allow CONNECT to " + target +
              " (many proxies allow port 443 only), or reach it without the proxy by NO_PROXY"};
}

}  // namespace

std::vector<tcp::endpoint> in_turn(const tcp::resolver::results_type& found) {
  std::vector<tcp::endpoint> first;
  std::vector<tcp::endpoint> second;
  for (const auto& entry : found) {
    const bool is_first = first.empty() || first.front().protocol() == entry.endpoint().protocol();
    (is_first ? first : second).push_back(entry.endpoint());
  }
  std::vector<tcp::endpoint> all;
  for (std::size_t i = 0; i < std::max(first.size(), second.size()); ++i) {
    if (i < first.size()) all.push_back(first[i]);
    if (i < second.size()) all.push_back(second[i]);
  }
  all.resize(std::min(all.size(), limits::addresses_max));
  return all;
}

Awaitable<Result<void>> dial(TlsStream& stream, ServerAddress server, ProxyRules rules) {
  FL_CO_TRY(const auto proxy, rules.proxy_for(server));
  const std::string target = to_string(server);
  if (!proxy) co_return co_await connect_to(stream, server, target);
  FL_CO_CHECK(co_await connect_to(stream, proxy->address, "the proxy " + proxy->shown()));
  FL_CO_TRY(const ProxyAnswer answer, co_await ask_proxy(stream, *proxy, target));
  if (answer.lets_through()) co_return success();
  co_return refusal(*proxy, answer, target);
}

}  // namespace fl
