// SPDX-License-Identifier: Apache-2.0
#include "shared/net/address_text.hpp"

#include <fmt/format.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>

namespace fl {

std::string host_text(const sockaddr& address) {
  const void* number = nullptr;
  if (address.sa_family == AF_INET)
    number = &reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  if (address.sa_family == AF_INET6)
    number = &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (number == nullptr ||
      ::inet_ntop(address.sa_family, number, text.data(), text.size()) == nullptr)
    return "the Unix socket";
  return text.data();
}

std::string peer_text(const boost::asio::ip::tcp::socket& socket) {
  boost::system::error_code gone;
  const auto peer = socket.remote_endpoint(gone);
  if (gone) return "unknown";
  const std::string host = peer.address().to_string();
  return fmt::format("{}:{}", peer.address().is_v6() ? fmt::format("[{}]", host) : host,
                     peer.port());
}

}  // namespace fl
