// SPDX-License-Identifier: Apache-2.0
#include "shared/net/proxy.hpp"

#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/network_v4.hpp>
#include <boost/asio/ip/network_v6.hpp>

#include <algorithm>
#include <array>
#include <cctype>

namespace fl {
namespace {

namespace ip = boost::asio::ip;

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

std::optional<std::string> percent_decoded(std::string_view text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    const char small = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return small >= 'a' && small <= 'f' ? small - 'a' + 10 : -1;
  };
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      result += text[i];
      continue;
    }
    const int high = i + 1 < text.size() ? digit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? digit(text[i + 2]) : -1;
    if (high < 0 || low < 0) return std::nullopt;
    result += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return result;
}

/// Turns an IPv4 address inside of IPv6 (::ffff:a.b.c.d) into the IPv4 address.
ip::address plain(const ip::address& address) {
  const bool is_mapped = address.is_v6() && address.to_v6().is_v4_mapped();
  return is_mapped ? ip::address(ip::make_address_v4(ip::v4_mapped, address.to_v6())) : address;
}

/// Whether the address is in `network`, such as 10.0.0.0/8.
bool is_in_network(const ip::address& address, const std::string& network) {
  boost::system::error_code ec;
  if (address.is_v4()) {
    const auto v4 = ip::make_network_v4(network, ec);
    return !ec && ip::network_v4(address.to_v4(), v4.prefix_length()).network() == v4.network();
  }
  const auto v6 = ip::make_network_v6(network, ec);
  return !ec && ip::network_v6(address.to_v6(), v6.prefix_length()).network() == v6.network();
}

/// Splits "host:port", "[v6]:port", "[v6]" into the host and the port, which is "" if it is
/// missing.
std::pair<std::string_view, std::string_view> split_port(std::string_view entry) {
  if (entry.starts_with('[')) {
    const auto end = entry.find(']');
    if (end == entry.npos) return {entry, ""};
    const auto rest = entry.substr(end + 1);
    return {entry.substr(1, end - 1), rest.starts_with(':') ? rest.substr(1) : ""};
  }
  const auto colon = entry.find(':');
  const bool is_v6 = colon != entry.npos && entry.find(':', colon + 1) != entry.npos;
  if (colon == entry.npos || is_v6) return {entry, ""};
  return {entry.substr(0, colon), entry.substr(colon + 1)};
}

bool names_server(std::string_view entry, const ServerAddress& server) {
  auto [host, port] = split_port(entry);
  if (!port.empty() && port != std::to_string(server.port)) return false;
  boost::system::error_code ec;
  const auto server_ip = ip::make_address(server.host, ec);
  if (!ec) {
    const auto address = plain(server_ip);
    if (host.find('/') != host.npos) return is_in_network(address, std::string(host));
    const auto wanted = ip::make_address(std::string(host), ec);
    return !ec && plain(wanted) == address;
  }
  // As in Go: "*.example.org" is every name below example.org, and not that one.
  const bool is_below = host.starts_with("*.");
  if (is_below) host.remove_prefix(1);
  while (host.starts_with('.')) host.remove_prefix(1);
  while (host.ends_with('.')) host.remove_suffix(1);
  std::string name = lower(server.host);
  if (name.ends_with('.')) name.pop_back();
  const std::string suffix = lower(host);
  if (suffix.empty()) return false;
  return (!is_below && name == suffix) || name.ends_with("." + suffix);
}

}  // namespace

std::string Proxy::shown() const {
  return "http://" + to_string(address) + " (from " + source + ")";
}

Result<Proxy> parse_proxy(std::string_view text, std::string_view source) {
  const auto wrong = [source](std::string_view why) {
    return Error(Errc::invalid_input,
                 std::string(source) + ": " + std::string(why) +
                     "; write http://HOST:PORT or http://USER:PASSWORD@HOST:PORT, with %XX for "
                     "special characters in the password");
  };
  const auto slashes = text.find("://");
  if (slashes != text.npos) {
    const std::string scheme = lower(text.substr(0, slashes));
    if (scheme != "http") {
      const bool is_known = scheme.starts_with("socks") || scheme == "https" || scheme == "quic";
      return wrong("Tributary speaks to HTTP proxies only, not to " +
                   (is_known ? scheme + ":// ones" : "such ones"));
    }
    text.remove_prefix(slashes + 3);
  }
  Proxy proxy;
  proxy.source = source;
  if (const auto at = text.rfind('@'); at != text.npos) {
    std::string_view login = text.substr(0, at);
    const auto colon = login.find(':');
    const auto user = percent_decoded(login.substr(0, colon));
    const auto password =
        percent_decoded(colon == login.npos ? std::string_view() : login.substr(colon + 1));
    if (!user || !password)
      return wrong("a % in the user name or password is not followed by two digits");
    if (user->find(':') != user->npos) return wrong("the user name has a colon in it");
    proxy.credentials = *user + ":" + *password;
    text.remove_prefix(at + 1);
  }
  if (const auto slash = text.find('/'); slash != text.npos) {
    if (slash + 1 != text.size()) return wrong("there is a path behind the port");
    text.remove_suffix(1);
  }
  const auto address = parse_server_address(text);
  if (!address) return wrong("there is no HOST:PORT of a proxy in it");
  proxy.address = *address;
  return proxy;
}

bool is_without_proxy(std::string_view list, const ServerAddress& server) {
  if (list == "*") return true;
  constexpr std::string_view between = ", \t\n";
  while (true) {
    const auto begin = list.find_first_not_of(between);
    if (begin == list.npos) return false;
    list.remove_prefix(begin);
    const auto end = std::min(list.find_first_of(between), list.size());
    if (names_server(list.substr(0, end), server)) return true;
    list.remove_prefix(end);
  }
}

ProxyRules::ProxyRules(std::string flag, const Environment& environment) {
  if (flag == "none") return;
  for (const char* const name : {"no_proxy", "NO_PROXY"}) {
    if (without_.empty()) without_ = environment(name).value_or("");
  }
  if (!flag.empty()) {
    text_ = std::move(flag);
    source_ = "--proxy";
    return;
  }
  for (const char* const name : {"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}) {
    text_ = environment(name).value_or("");
    source_ = name;
    if (!text_.empty()) return;
  }
}

Result<std::optional<Proxy>> ProxyRules::proxy_for(const ServerAddress& server) const {
  if (text_.empty() || is_without_proxy(without_, server)) return std::optional<Proxy>();
  FL_TRY(Proxy proxy, parse_proxy(text_, source_));
  return std::optional<Proxy>(std::move(proxy));
}

}  // namespace fl
