// SPDX-License-Identifier: Apache-2.0
#include "shared/identity/token.hpp"

#include "shared/base/io/text_of_bytes.hpp"

#include <boost/algorithm/string/trim.hpp>
#include <boost/crc.hpp>

namespace fl {
namespace {

constexpr std::string_view family = "flj";
constexpr std::string_view prefix = "flj1.";
constexpr std::size_t fixed_bytes = 1 + 2 + 32 + 8 + 16 + 4;  // All fields except the host.

std::uint32_t checksum(std::string_view fields) {
  boost::crc_32_type crc;
  crc.process_bytes(fields.data(), fields.size());
  return crc.checksum();
}

template <class T>
void append(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// Reads fields one after the other; the caller has checked the total size.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : left_(bytes) {}

  std::string_view take(std::size_t bytes) {
    const std::string_view field = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return field;
  }
  template <class T>
  T take() {
    return load<T>(bytes_of(take(sizeof(T))));
  }

 private:
  std::string_view left_;
};

Error wrong(std::string why) { return {Errc::invalid_input, std::move(why)}; }

/// Returns the part after "flj1.", or an error that says why this is not a token of this version.
Result<std::string_view> body_of(std::string_view text) {
  if (text.starts_with(prefix)) return text.substr(prefix.size());
  const std::size_t dot = text.find('.');
  const bool ours = text.starts_with(family) && dot != text.npos && dot > family.size() &&
                    text.substr(0, dot).find_first_not_of("0123456789", family.size()) == text.npos;
  if (ours)
    return wrong("this join token begins with \"" + std::string(text.substr(0, dot + 1)) +
                 "\", which this version does not know: a newer fl-server made it, or it is "
                 "mistyped");
  return wrong("this is not a join token: a join token begins with \"" + std::string(prefix) +
               "\"");
}

}  // namespace

std::string hash_secret(Bytes secret) {
  const Sha256 hash = sha256(secret);
  return to_hex(std::as_bytes(std::span(hash)));
}

std::string JoinToken::id_hex() const { return to_hex(std::as_bytes(std::span(id))); }
std::string JoinToken::secret_hash() const { return hash_secret(std::as_bytes(std::span(secret))); }

Result<JoinToken> make_token(const ServerAddress& server, const Sha256& ca_fingerprint) {
  FL_CHECK(check_host(server.host));
  if (server.port == 0) return wrong("a join token needs the server's port");
  JoinToken token;
  token.server = server;
  token.ca_fingerprint = ca_fingerprint;
  FL_CHECK(fill_random(std::as_writable_bytes(std::span(token.id))));
  FL_CHECK(fill_random(std::as_writable_bytes(std::span(token.secret))));
  return token;
}

std::string to_string(const JoinToken& token) {
  FL_ASSERT(token.server.host.size() <= 255);
  std::string fields;
  append(fields, static_cast<std::uint8_t>(token.server.host.size()));
  fields += token.server.host;
  append(fields, token.server.port);
  append(fields, token.ca_fingerprint);
  append(fields, token.id);
  append(fields, token.secret);
  append(fields, checksum(fields));
  return std::string(prefix) + to_base64url(bytes_of(fields));
}

Result<JoinToken> parse_token(std::string_view text) {
  const std::string trimmed = boost::algorithm::trim_copy(std::string(text));
  FL_TRY(const std::string_view body, body_of(trimmed));
  if (body.find_first_of(" \t\r\n") != body.npos)
    return wrong("this join token contains white space: copy it again as one unbroken line");

  // The first characters hold the host's length and so determine the token's length. So a token
  // that is cut short anywhere is detected.
  if (body.size() < 4) return wrong("this join token is cut short: copy it again");
  const auto head = from_base64url(body.substr(0, 4));
  if (!head) return wrong("this join token is mistyped: it contains an invalid character");
  const std::size_t host_bytes = static_cast<unsigned char>(head->front());
  const std::size_t bytes = fixed_bytes + host_bytes;
  const std::size_t characters = (bytes * 8 + 5) / 6;
  if (body.size() < characters)
    return wrong("this join token is cut short, or mistyped: copy it again");
  if (body.size() > characters)
    return wrong("this join token is too long, or mistyped: copy it again");

  const auto decoded = from_base64url(body);
  if (!decoded) return wrong("this join token is mistyped: it contains an invalid character");
  Fields fields{*decoded};
  JoinToken token;
  fields.take(1);
  token.server.host = fields.take(host_bytes);
  token.server.port = fields.take<std::uint16_t>();
  token.ca_fingerprint = fields.take<Sha256>();
  token.id = fields.take<std::array<std::uint8_t, 8>>();
  token.secret = fields.take<std::array<std::uint8_t, 16>>();
  if (fields.take<std::uint32_t>() != checksum({decoded->data(), bytes - sizeof(std::uint32_t)}))
    return wrong("this join token is mistyped: its checksum is wrong; copy it again");
  if (auto host = check_host(token.server.host); !host) return host.error().at("join token");
  if (token.server.port == 0) return wrong("this join token has no port");
  return token;
}

}  // namespace fl
