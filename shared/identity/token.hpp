// SPDX-License-Identifier: Apache-2.0
// A join token is one line of text that the operator of a server gives to the owner of a new
// client. It contains the server's address, the fingerprint of the authority to trust, and a secret
// that proves, once, that its holder was invited.
//
//   flj1.BASE64URL       BASE64URL encodes these bytes, numbers little-endian: host length (1),
//                        host, port (2), fingerprint (32), id (8), secret (16), CRC-32 of all bytes
//                        before it (4)
//
// The CRC detects typing and copying mistakes: it finds every change within four neighbouring
// bytes, so any wrong character and any two wrong neighbours. It is no protection against an
// attacker; the secret is. A token has no character with a meaning in a shell. Any thread.
#pragma once

#include "shared/identity/crypto.hpp"
#include "shared/net/server_address.hpp"

namespace fl {

struct JoinToken {
  ServerAddress server;
  Sha256 ca_fingerprint{};                // SHA-256 of the authority's SubjectPublicKeyInfo.
  std::array<std::uint8_t, 8> id{};       // Identifies the token on the server; not secret.
  std::array<std::uint8_t, 16> secret{};  // Only the token's holder knows it.

  /// The id in hexadecimal, as it is stored and shown.
  [[nodiscard]] std::string id_hex() const;
  /// SHA-256 of the secret's 16 bytes, in hexadecimal. The server stores this instead of the
  /// secret. A plain hash is enough, because 128 random bits can't be guessed.
  [[nodiscard]] std::string secret_hash() const;

  bool operator==(const JoinToken&) const = default;
};

/// Makes a token with a random id and secret. invalid_input: the server's host or port is not
/// valid.
[[nodiscard]] Result<JoinToken> make_token(const ServerAddress& server,
                                           const Sha256& ca_fingerprint);

[[nodiscard]] std::string to_string(const JoinToken& token);

/// Parses a token; white space around it is ignored. Errors are invalid_input and say whether the
/// text is no token, comes from a newer version, is cut short, or is mistyped.
[[nodiscard]] Result<JoinToken> parse_token(std::string_view text);

/// JoinToken::secret_hash() of the 16 bytes of a secret.
[[nodiscard]] std::string hash_secret(Bytes secret);

}  // namespace fl
