// SPDX-License-Identifier: Apache-2.0
#include "shared/identity/enrolment.hpp"

#include "shared/base/io/text_of_bytes.hpp"
#include "shared/base/json.hpp"

namespace fl {
namespace {

using nlohmann::json;

constexpr std::size_t token_id_digits = 2 * sizeof(JoinToken::id);
constexpr std::size_t secret_bytes = sizeof(JoinToken::secret);

Result<std::string> text_field(const json& object, const char* name, Errc code) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string())
    return Error(code, "\"" + std::string(name) + "\" is missing or not a string");
  return found->get<std::string>();
}

Result<json> parse_object(std::string_view body, Errc code) {
  if (body.size() > enrolment_bytes_max)
    return Error(Errc::too_large, "the message has " + std::to_string(body.size()) +
                                      " bytes; the limit is " +
                                      std::to_string(enrolment_bytes_max));
  json object = parse_json(body);
  if (!object.is_object()) return Error(code, "the message is not a JSON object");
  return object;
}

bool is_token_id(std::string_view id) {
  return id.size() == token_id_digits && id.find_first_not_of("0123456789abcdef") == id.npos;
}

/// Whether the peer caused the error and can act on it. Other errors are the server's.
bool is_peers_fault(Errc code) {
  return code == Errc::invalid_input || code == Errc::unauthenticated || code == Errc::conflict ||
         code == Errc::too_large;
}

/// Finds the token of the request and checks its secret.
Result<TokenBook::Token> find_proven_token(TokenBook& book, const EnrolmentRequest& request) {
  FL_TRY(const std::optional<TokenBook::Token> token, book.find_token(request.token_id));
  // For an unknown id compare with an impossible hash, so that it takes as long as for a known one.
  const std::string stored = token ? token->secret_hash : std::string(2 * sizeof(Sha256), '-');
  const std::string given = hash_secret(bytes_of(request.secret));
  if (!equal_in_constant_time(bytes_of(stored), bytes_of(given)))
    return Error(Errc::unauthenticated,
                 "the server does not know this join token; ask the operator for a new one");
  return *token;
}

Error used_error() {
  return {Errc::conflict, "this join token was already used; ask the operator for a new one"};
}

}  // namespace

std::string to_json(const EnrolmentRequest& request) {
  return json_text(json{{"token_id", request.token_id},
                        {"secret", to_base64url(bytes_of(request.secret))},
                        {"name", request.name},
                        {"csr", request.csr}});
}

std::string to_json(const EnrolmentResponse& response) {
  return json_text(
      json{{"certificate", response.certificate}, {"ca", response.ca}, {"name", response.name}});
}

std::string to_json(const Error& error) {
  const bool tell = is_peers_fault(error.code());
  return json_text(
      json{{"error", tell ? error.message() : "the server had an internal error; see its log"}});
}

unsigned http_status(const Error& error) {
  switch (error.code()) {
    case Errc::invalid_input: return 400;
    case Errc::unauthenticated: return 403;
    case Errc::conflict: return 409;
    case Errc::too_large: return 413;
    case Errc::no_space:
    case Errc::unavailable:
    case Errc::cancelled: return 503;
    default: return 500;
  }
}

Result<EnrolmentRequest> parse_enrolment_request(std::string_view body) {
  FL_TRY(const json object, parse_object(body, Errc::invalid_input));
  EnrolmentRequest request;
  FL_TRY(request.token_id, text_field(object, "token_id", Errc::invalid_input));
  FL_TRY(const std::string secret, text_field(object, "secret", Errc::invalid_input));
  FL_TRY(request.name, text_field(object, "name", Errc::invalid_input));
  FL_TRY(request.csr, text_field(object, "csr", Errc::invalid_input));
  if (!is_token_id(request.token_id))
    return Error(Errc::invalid_input, "\"token_id\" is not 16 hexadecimal digits");
  const auto decoded = from_base64url(secret);
  if (!decoded || decoded->size() != secret_bytes)
    return Error(Errc::invalid_input, "\"secret\" is not 16 bytes in base64url");
  request.secret = *decoded;
  return request;
}

Result<EnrolmentResponse> parse_enrolment_response(unsigned status, std::string_view body) {
  FL_TRY(const json object, parse_object(body, Errc::protocol));
  if (status != 200) {
    FL_TRY(const std::string why, text_field(object, "error", Errc::protocol));
    return Error(status >= 500 ? Errc::unavailable : Errc::unauthenticated, why);
  }
  EnrolmentResponse response;
  FL_TRY(response.certificate, text_field(object, "certificate", Errc::protocol));
  FL_TRY(response.ca, text_field(object, "ca", Errc::protocol));
  FL_TRY(response.name, text_field(object, "name", Errc::protocol));
  return response;
}

Result<EnrolmentResponse> enroll(const Authority& authority, TokenBook& book,
                                 const EnrolmentRequest& request, double now) {
  // Check the secret first: a peer without it must learn nothing about the token.
  FL_TRY(const TokenBook::Token token, find_proven_token(book, request));
  if (now > token.expires_at)
    return Error(Errc::unauthenticated,
                 "this join token has expired; ask the operator for a new one");
  if (!request.name.empty()) {
    FL_CHECK(check_client_name(request.name));
    if (request.name != token.name)
      return Error(Errc::unauthenticated, "this join token is for client \"" + token.name +
                                              "\", not for \"" + request.name + "\"");
  }
  FL_TRY(const bool revoked, book.is_revoked(token.name));
  if (revoked)
    return Error(Errc::unauthenticated,
                 "client \"" + token.name + "\" is revoked and can't join again under this name");
  FL_TRY(const ClientCertificate certificate, authority.issue_client(token.name, request.csr, now));
  if (token.used_at != 0 && token.key_digest != certificate.key_digest) return used_error();
  FL_CHECK(book.use_token(request.token_id, token.name, certificate.serial, certificate.key_digest,
                          now));
  return EnrolmentResponse{certificate.pem, authority.trusted_pem(), token.name};
}

}  // namespace fl
