// SPDX-License-Identifier: Apache-2.0
#include "shared/net/server_address.hpp"

#include <boost/asio/ip/address.hpp>

#include <charconv>

namespace fl {
namespace {

constexpr std::size_t host_bytes_max = 253;  // RFC 1035, section 2.3.4, without the final dot.
constexpr std::string_view host_characters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";

}  // namespace

bool is_ip_address(std::string_view host) {
  boost::system::error_code ec;
  boost::asio::ip::make_address(host, ec);
  return !ec && host.find('%') == host.npos;
}

Result<void> check_host(std::string_view host) {
  if (host.empty()) return Error(Errc::invalid_input, "the host name is empty");
  if (host.size() > host_bytes_max)
    return Error(Errc::invalid_input, "the host name has " + std::to_string(host.size()) +
                                          " characters; the limit is " +
                                          std::to_string(host_bytes_max));
  if (is_ip_address(host)) return {};
  const bool is_name = host.find_first_not_of(host_characters) == host.npos &&
                       host.front() != '-' && host.front() != '.';
  if (!is_name)
    return Error(Errc::invalid_input,
                 "\"" + std::string(host) + "\" is neither a host name nor an IP address");
  return {};
}

Result<ServerAddress> parse_server_address(std::string_view text) {
  const auto wrong = [&](std::string_view why) {
    return Error(Errc::invalid_input, "\"" + std::string(text) + "\" " + std::string(why));
  };
  const std::size_t colon = text.rfind(':');
  if (colon == text.npos) return wrong("is not HOST:PORT");
  const std::string_view digits = text.substr(colon + 1);
  std::uint16_t port = 0;
  const auto [end, ec] = std::from_chars(digits.begin(), digits.end(), port);
  if (ec != std::errc{} || end != digits.end() || port == 0)
    return wrong("does not end in a port from 1 to 65535");

  std::string_view host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (bracketed != (host.find(':') != host.npos))
    return wrong("is not HOST:PORT (write brackets around an IPv6 address, and only there)");
  FL_CHECK(check_host(host));
  return ServerAddress{std::string(host), port};
}

Result<ServerAddress> parse_server_address(std::string_view text, std::uint16_t port) {
  const bool is_bare_v6 = is_ip_address(text) && text.find(':') != text.npos;
  if (is_bare_v6) return ServerAddress{std::string(text), port};
  const bool has_port = !text.ends_with(']') && text.find(':') != text.npos;
  return parse_server_address(has_port ? std::string(text)
                                       : std::string(text) + ":" + std::to_string(port));
}

Result<ServerAddress> parse_listen_address(std::string_view text) {
  const bool takes_any = text.ends_with(":0");
  if (!takes_any) return parse_server_address(text);
  FL_TRY(ServerAddress address,
         parse_server_address(std::string(text.substr(0, text.size() - 1)) + "1"));
  address.port = 0;
  return address;
}

std::string to_string(const ServerAddress& address) {
  const bool v6 = address.host.find(':') != std::string::npos;
  return (v6 ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

}  // namespace fl
