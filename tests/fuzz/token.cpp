// SPDX-License-Identifier: Apache-2.0
// Fuzzes join tokens: the input as the token's text, and the input as the fields of a token with
// the right checksum.
#include "shared/identity/token.hpp"
#include "shared/base/io/text_of_bytes.hpp"

#include <boost/crc.hpp>

using namespace fl;

namespace {

void check(std::string_view text) {
  const auto token = parse_token(text);
  if (!token) {
    FL_ASSERT(token.error().code() == Errc::invalid_input);
    return;
  }
  FL_ASSERT(token->server.port != 0 && check_host(token->server.host));
  FL_ASSERT(parse_token(to_string(*token)).value() == *token);
}

std::string sealed(std::string_view fields) {
  boost::crc_32_type crc;
  crc.process_bytes(fields.data(), fields.size());
  std::string bytes(fields);
  bytes.resize(fields.size() + sizeof(std::uint32_t));
  store<std::uint32_t>(std::as_writable_bytes(std::span(bytes)), fields.size(), crc.checksum());
  return "flj1." + to_base64url(bytes_of(bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  check(input);
  check(sealed(input));
  return 0;
}
