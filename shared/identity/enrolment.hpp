// SPDX-License-Identifier: Apache-2.0
// Enrolment: how an invited client gets its certificate. This file has the messages of
// POST /v1/enroll and what the server does with them, without any network code. enroll() is the
// server's side; client/agent/enroll_client.hpp is the client's.
//
//   request   {"token_id": hex, "secret": base64url, "name": text, "csr": PEM}
//   response  200 {"certificate": PEM, "ca": PEM, "name": text}, or an error status {"error": text}
//
// The request contains the token's secret. So it is sent inside TLS, and only to a server that has
// proved to own the authority whose fingerprint is in the token. Times are Unix seconds.
#pragma once

#include "shared/identity/authority.hpp"
#include "shared/identity/token.hpp"

namespace fl {

inline constexpr std::string_view enrolment_target = "/v1/enroll";
inline constexpr std::size_t enrolment_bytes_max = 16 << 10;  // The body of a request or response.

struct EnrolmentRequest {
  std::string token_id;  // 16 lower-case hexadecimal digits.
  std::string secret;    // The 16 bytes themselves.
  std::string name;      // The name that the client wants; "": the name in the token's record.
  std::string csr;       // PEM.
};

struct EnrolmentResponse {
  std::string certificate;  // PEM.
  std::string ca;           // PEM.
  std::string name;
};

[[nodiscard]] std::string to_json(const EnrolmentRequest& request);
[[nodiscard]] std::string to_json(const EnrolmentResponse& response);
/// {"error": …}. The details of an error inside the server are not sent to the peer; log them.
[[nodiscard]] std::string to_json(const Error& error);
/// The HTTP status for this error.
[[nodiscard]] unsigned http_status(const Error& error);

/// Errors: too_large, or invalid_input, which names the field.
[[nodiscard]] Result<EnrolmentRequest> parse_enrolment_request(std::string_view body);
/// A status other than 200 becomes an error with the server's text: unavailable for a 5xx status,
/// unauthenticated for the others. A body that is not as described above is `protocol`.
[[nodiscard]] Result<EnrolmentResponse> parse_enrolment_response(unsigned status,
                                                                 std::string_view body);

/// The server's record of join tokens and clients, as enroll() needs it. The server implements it
/// with its history. Calls may block; they come from the thread that called enroll().
class TokenBook {
 public:
  struct Token {
    std::string name;         // The client that the token is for.
    std::string secret_hash;  // JoinToken::secret_hash().
    double expires_at = 0;
    double used_at = 0;           // 0: unused.
    std::string key_digest = {};  // ClientCertificate::key_digest of the key it was used for.
  };

  virtual ~TokenBook() = default;
  [[nodiscard]] virtual Result<std::optional<Token>> find_token(std::string_view id) = 0;
  [[nodiscard]] virtual Result<bool> is_revoked(std::string_view client) = 0;
  /// In one durable step: marks the token as used (at `now`) for the key with this digest, and
  /// records the serial number of the client's certificate. `conflict`: since it was looked up, the
  /// token was used for another key or the client was revoked.
  [[nodiscard]] virtual Result<void> use_token(std::string_view id, std::string_view client,
                                               std::string_view serial, std::string_view key_digest,
                                               double now) = 0;
};

/// Checks the token, issues the client's certificate, and marks the token as used. A client that
/// has enrolled before may enrol again with a new token (it lost its key, for example); then only
/// its newest certificate is valid. The same request may be sent again, because the answer may have
/// been lost; a certificate is useless to anyone without the key.
///
/// Errors. unauthenticated: an unknown id or a wrong secret (same text and same time for both), an
/// expired token, another name than the token's, a revoked client. conflict: the token was used for
/// another key. invalid_input: a bad name or signing request; the token stays unused. Errors of the
/// TokenBook are passed on.
[[nodiscard]] Result<EnrolmentResponse> enroll(const Authority& authority, TokenBook& book,
                                               const EnrolmentRequest& request, double now);

}  // namespace fl
