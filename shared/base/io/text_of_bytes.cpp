// SPDX-License-Identifier: Apache-2.0
#include "shared/base/io/text_of_bytes.hpp"

#include <boost/algorithm/hex.hpp>

#include <charconv>
#include <cstdint>
#include <iterator>

namespace fl {
namespace {

constexpr std::string_view base64url_digits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

}  // namespace

std::string to_hex(Bytes bytes) {
  std::string text;
  boost::algorithm::hex_lower(text_of(bytes), std::back_inserter(text));
  return text;
}

bool read_hex(std::string_view text, MutableBytes out) {
  if (text.size() != 2 * out.size()) return false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    unsigned value = 0;
    const char* const end = text.data() + 2 * i + 2;
    const auto parsed = std::from_chars(text.data() + 2 * i, end, value, 16);
    if (parsed.ec != std::errc() || parsed.ptr != end) return false;
    out[i] = static_cast<std::byte>(value);
  }
  return true;
}

std::string to_base64url(Bytes bytes) {
  std::string text;
  text.reserve((4 * bytes.size() + 2) / 3);
  std::uint32_t bits = 0;  // The last `waiting` bits are not written yet.
  int waiting = 0;
  for (const std::byte byte : bytes) {
    bits = bits << 8 | std::to_integer<std::uint32_t>(byte);
    for (waiting += 8; waiting >= 6; waiting -= 6)
      text += base64url_digits[bits >> (waiting - 6) & 63];
  }
  if (waiting > 0) text += base64url_digits[bits << (6 - waiting) & 63];
  return text;
}

Result<std::string> from_base64url(std::string_view text) {
  const Error wrong{Errc::invalid_input, "not base64url"};
  std::string bytes;
  bytes.reserve(3 * text.size() / 4);
  std::uint32_t bits = 0;  // The last `waiting` bits belong to the next byte.
  int waiting = 0;
  for (const char digit : text) {
    const std::size_t value = base64url_digits.find(digit);
    if (value == base64url_digits.npos) return wrong;
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    waiting += 6;
    if (waiting < 8) continue;
    waiting -= 8;
    bytes += static_cast<char>(bits >> waiting & 255);
  }
  // Stray bits are rejected, because otherwise two texts would mean the same bytes and a typo could
  // go unnoticed.
  const std::uint32_t stray = bits & ((1u << waiting) - 1);
  if (waiting == 6 || stray != 0) return wrong;
  return bytes;
}

}  // namespace fl
