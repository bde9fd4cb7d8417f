// How an invited client becomes a known one: the messages of POST /v1/enroll and what the server
// does with them, free of sockets. The server's side is enroll(); the client's is
// enroll_client.hpp.
//
//   request   {"token_id": hex, "secret": base64url, "name": text, "csr": PEM}
//   response  200 {"certificate": PEM, "ca": PEM, "name": text}, or an error status {"error": text}
//
// The request travels inside TLS to a server whose authority the token's fingerprint has proved; it
// must go nowhere else, as it holds the secret. Times are Unix seconds.
#pragma once

#include "shared/identity/authority.hpp"
#include "shared/identity/token.hpp"

namespace fl {

inline constexpr std::string_view enrolment_target = "/v1/enroll";
inline constexpr std::size_t enrolment_bytes_max = 16 << 10;  // Of a body, either way.

struct EnrolmentRequest {
  std::string token_id;  // 16 lower-case hexadecimal digits.
  std::string secret;    // The 16 bytes themselves.
  std::string name;      // "": the name that the token is bound to.
  std::string csr;       // PEM.
};

struct EnrolmentResponse {
  std::string certificate;  // PEM, as `ca`.
  std::string ca;
  std::string name;
};

[[nodiscard]] std::string to_json(const EnrolmentRequest& request);
[[nodiscard]] std::string to_json(const EnrolmentResponse& response);
/// {"error": …}. What failed inside the server is not told to the peer; log it.
[[nodiscard]] std::string to_json(const Error& error);
/// The HTTP status that goes with it.
[[nodiscard]] unsigned http_status(const Error& error);

/// too_large, or invalid_input naming the field.
[[nodiscard]] Result<EnrolmentRequest> parse_enrolment_request(std::string_view body);
/// An answer other than 200 becomes the server's own sentence: unavailable for a 5xx status,
/// unauthenticated for others. An answer that makes no sense is `protocol`.
[[nodiscard]] Result<EnrolmentResponse> parse_enrolment_response(unsigned status,
                                                                 std::string_view body);

/// The server's record of tokens and clients, as enroll() needs it; the server puts its store
/// behind it. Blocks; called from the thread that enroll() is called from.
class TokenBook {
 public:
  struct Token {
    std::string name;         // The client that it is for.
    std::string secret_hash;  // JoinToken::secret_hash().
    double expires_at = 0;
    double used_at = 0;           // 0: unused.
    std::string key_digest = {};  // Of the key it was used for, as in ClientCertificate.
  };

  virtual ~TokenBook() = default;
  [[nodiscard]] virtual Result<std::optional<Token>> find_token(std::string_view id) = 0;
  [[nodiscard]] virtual Result<bool> is_revoked(std::string_view client) = 0;
  /// In one durable step: the token is used (at `now`) for the key with this digest, the client
  /// known by this certificate serial. `conflict` when the token was used for another key or the
  /// client revoked since it was looked up.
  [[nodiscard]] virtual Result<void> use_token(std::string_view id, std::string_view client,
                                               std::string_view serial, std::string_view key_digest,
                                               double now) = 0;
};

/// Certifies the client when its token is right, and uses the token up. A name that has enrolled
/// before may enrol again with a new token (its key was lost); the newest certificate is the one.
/// The same request again is answered again: its answer may have been lost, and nobody but the
/// holder of the key can use a certificate for it.
///
/// unauthenticated: an unknown id or a wrong secret (told apart by neither words nor time), an
/// expired token, another name than the token's, a revoked name. conflict: a token that was used
/// for another key. invalid_input: a bad name or signing request; the token stays unused. Errors of
/// the book pass through.
[[nodiscard]] Result<EnrolmentResponse> enroll(const Authority& authority, TokenBook& book,
                                               const EnrolmentRequest& request, double now);

}  // namespace fl
