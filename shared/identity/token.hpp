// Join tokens: the one line that a server's operator hands to the owner of a new client. It says
// where the server is, which authority to trust (a fingerprint, so nothing else has to be copied),
// and proves once that its holder was invited.
//
//   flj1.BASE64URL       of: host length (1), host, port (2), fingerprint (32), id (8),
//                        secret (16), CRC-32 of all these bytes (4); little-endian
//
// The CRC tells a mangled paste from a wrong token: it finds every change within four neighbouring
// bytes, and so any one character and any two neighbours. It guards nothing; the secret does. No
// character of a token means anything to a shell. Any thread.
#pragma once

#include "shared/identity/crypto.hpp"
#include "shared/net/server_address.hpp"

namespace fl {

struct JoinToken {
  ServerAddress server;
  Sha256 ca_fingerprint{};                // Of the authority's SubjectPublicKeyInfo.
  std::array<std::uint8_t, 8> id{};       // Names the token on the server; no secret.
  std::array<std::uint8_t, 16> secret{};  // Known to the token's holder alone.

  /// Hexadecimal, as it is stored and shown.
  [[nodiscard]] std::string id_hex() const;
  /// What the server stores in place of the secret: SHA-256 of its 16 bytes, hexadecimal. A plain
  /// hash is enough, as 128 random bits can't be guessed.
  [[nodiscard]] std::string secret_hash() const;

  bool operator==(const JoinToken&) const = default;
};

/// A new token, with a random id and secret. The server's host is checked (invalid_input).
[[nodiscard]] Result<JoinToken> make_token(const ServerAddress& server,
                                           const Sha256& ca_fingerprint);

[[nodiscard]] std::string to_string(const JoinToken& token);

/// White space around the token is ignored. Errors, invalid_input, say which: not a token, made by
/// a newer version, cut short, or mistyped.
[[nodiscard]] Result<JoinToken> parse_token(std::string_view text);

/// The hash under which a secret is stored; see JoinToken::secret_hash.
[[nodiscard]] std::string hash_secret(Bytes secret);

}  // namespace fl
