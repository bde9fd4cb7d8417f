// SPDX-License-Identifier: Apache-2.0
#include "server/net/client_hello.hpp"

#include "shared/base/limits.hpp"
#include "shared/net/tls_record.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace fl::server {

namespace {

// RFC 8446, section 4.
constexpr std::byte handshake_record{22};
constexpr std::byte tls_major{3};
constexpr std::byte client_hello{1};
constexpr std::size_t hello_head_bytes = 4;  // Type, size of three bytes.

std::size_t number(Bytes bytes) {
  std::size_t value = 0;
  for (const std::byte byte : bytes) value = value << 8 | std::to_integer<std::size_t>(byte);
  return value;
}

}  // namespace

HelloStage look_at_hello(Bytes first) {
  if (first.size() > limits::client_hello_bytes_max)
    first = first.first(limits::client_hello_bytes_max);
  const bool is_more_allowed = first.size() < limits::client_hello_bytes_max;
  std::array<std::byte, hello_head_bytes> head{};
  std::size_t known = 0;  // Bytes of the ClientHello.
  while (!first.empty()) {
    if (first[0] != handshake_record) return HelloStage::none;
    if (first.size() > 1 && first[1] != tls_major) return HelloStage::none;
    if (first.size() < tls_record::head_bytes) break;
    const std::size_t size = number(first.subspan(3, 2));
    if (size == 0 || size > tls_record::payload_bytes_max) return HelloStage::none;
    first = first.subspan(tls_record::head_bytes);
    const Bytes body = first.first(std::min(size, first.size()));
    first = first.subspan(body.size());
    for (std::size_t i = 0; i < body.size() && known + i < head.size(); ++i)
      head[known + i] = body[i];
    known += body.size();
    if (known > 0 && head[0] != client_hello) return HelloStage::none;
    if (known >= head.size() && known - head.size() >= number(Bytes(head).subspan(1)))
      return HelloStage::whole;
  }
  return is_more_allowed ? HelloStage::partial : HelloStage::none;
}

}  // namespace fl::server
