// SPDX-License-Identifier: Apache-2.0
#include "shared/wire/tls_context.hpp"

#include "shared/base/printable.hpp"

#include <fmt/format.h>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/verify_mode.hpp>

namespace fl {
namespace {

namespace ssl = net::ssl;

/// AES-128-GCM first: it is the fastest on a CPU with AES instructions (4.5 GB/s per core). A peer
/// without them lists ChaCha20 first, and then that is used.
constexpr const char* cipher_suites =
    "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384";
constexpr const char* key_exchange_groups = "X25519";
/// The part of an issuer's name that a message shows.
constexpr std::size_t issuer_bytes_max = 256;

/// The settings of both ends.
Result<ssl::context> make_context(ssl::context::method method) {
  ssl::context context(method);
  SSL_CTX* raw = context.native_handle();
  if (SSL_CTX_set_ciphersuites(raw, cipher_suites) != 1 ||
      SSL_CTX_set1_groups_list(raw, key_exchange_groups) != 1)
    return openssl_error("can't set up TLS");
  // No session resumption: it would skip the certificate check, so an expired one would pass.
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(raw, 0);
  // Free the record buffers of idle connections (2 x 17 KiB each; the server has thousands). The
  // cost is not measurable. TlsStream does its own read-ahead.
  SSL_CTX_set_mode(raw, SSL_MODE_RELEASE_BUFFERS);
  return context;
}

Result<void> use_pair(ssl::context& context, const std::string& chain_pem,
                      const std::string& key_pem) {
  boost::system::error_code ec;
  context.use_certificate_chain(net::buffer(chain_pem), ec);
  if (ec) return Error(Errc::corrupt, "TLS certificate: " + ec.message());
  context.use_private_key(net::buffer(key_pem), ssl::context::pem, ec);
  if (ec) return Error(Errc::corrupt, "TLS private key: " + ec.message());
  return {};
}

/// Trusts only this authority, or both while it is replaced. `purpose` is what the peer's
/// certificate must be issued for. OpenSSL derives it from the role too; it is set explicitly
/// because a mistake would let a client pass for the server.
Result<void> trust(ssl::context& context, const std::string& ca_pem, int purpose) {
  boost::system::error_code ec;
  context.add_certificate_authority(net::buffer(ca_pem), ec);
  if (ec) return Error(Errc::corrupt, "TLS authority: " + ec.message());
  if (SSL_CTX_set_purpose(context.native_handle(), purpose) != 1)
    return openssl_error("can't set up TLS");
  context.set_verify_mode(ssl::verify_peer);
  return {};
}

void free_pin(void*, void* pin, CRYPTO_EX_DATA*, int, long, void*) {
  delete static_cast<Sha256*>(pin);
}

/// The index under which a context stores the fingerprint that it pins; it is freed with the
/// context.
int pin_index() {
  static const int index = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, free_pin);
  return index;
}

/// OpenSSL calls this instead of its own verification. If the peer sent a certificate with the
/// pinned key, that becomes the only trusted one, and OpenSSL verifies the chain as usual.
int verify_pinned(X509_STORE_CTX* store, void* pin) {
  using StackPtr = std::unique_ptr<STACK_OF(X509),
                                   FreeWith<[](STACK_OF(X509) * stack) { sk_X509_free(stack); }>>;
  STACK_OF(X509)* sent = X509_STORE_CTX_get0_untrusted(store);
  for (int i = 0; i < sk_X509_num(sent); ++i) {
    X509* certificate = sk_X509_value(sent, i);
    const auto fingerprint = spki_fingerprint(*certificate);
    if (!fingerprint || *fingerprint != *static_cast<const Sha256*>(pin)) continue;
    const StackPtr trusted(sk_X509_new_null());
    if (!trusted || sk_X509_push(trusted.get(), certificate) <= 0) {
      X509_STORE_CTX_set_error(store, X509_V_ERR_OUT_OF_MEM);
      return 0;
    }
    X509_STORE_CTX_set0_trusted_stack(store, trusted.get());
    return X509_verify_cert(store) == 1;
  }
  X509_STORE_CTX_set_error(store, X509_V_ERR_APPLICATION_VERIFICATION);
  return 0;
}

/// The peer's verified certificate; null if the peer sent none.
const X509* verified_peer(const SSL& ssl) {
  const X509* certificate = SSL_get0_peer_certificate(&ssl);
  return SSL_get_verify_result(&ssl) == X509_V_OK ? certificate : nullptr;
}

/// Whether the peer ended the handshake because it rejected our certificate, or because we sent
/// none.
bool is_certificate_alert(const boost::system::error_code& ec) {
  if (ec.category() != net::error::get_ssl_category()) return false;
  const int alert = ERR_GET_REASON(static_cast<unsigned long>(ec.value())) - SSL_AD_REASON_OFFSET;
  return (alert >= SSL_AD_BAD_CERTIFICATE && alert <= SSL_AD_CERTIFICATE_UNKNOWN) ||
         alert == SSL_AD_UNKNOWN_CA || alert == SSL_AD_ACCESS_DENIED ||
         alert == SSL_AD_CERTIFICATE_REQUIRED;
}

/// Whether a certificate was issued by an authority that we don't know.
bool is_foreign(long verdict) {
  return verdict == X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY ||
         verdict == X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE ||
         verdict == X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN ||
         verdict == X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT;
}

/// Whether the other end speaks an older TLS, or no TLS at all.
bool is_other_tls(const boost::system::error_code& ec) {
  if (ec.category() != net::error::get_ssl_category()) return false;
  const int reason = ERR_GET_REASON(static_cast<unsigned long>(ec.value()));
  return reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_UNSUPPORTED_PROTOCOL ||
         reason == SSL_R_TLSV1_ALERT_PROTOCOL_VERSION;
}

/// The issuer of the certificate that the peer shows, trusted or not.
std::string shown_issuer(const SSL& ssl) {
  const STACK_OF(X509)* const chain = SSL_get_peer_cert_chain(&ssl);
  if (chain == nullptr || sk_X509_num(chain) == 0) return "unknown";
  X509_NAME* const issuer = X509_get_issuer_name(sk_X509_value(chain, 0));
  std::string text(issuer_bytes_max, '\0');
  X509_NAME_oneline(issuer, text.data(), static_cast<int>(text.size()));
  text.resize(text.find('\0'));
  return printable(text);
}

/// The error for a server whose certificate is not the federation's.
Error foreign_error(const SSL& ssl, const std::string& place, bool is_by_token) {
  const std::string what =
      is_by_token ? fmt::format(
                        "the server at {} is not the one that this join token was made for: "
                        "its fingerprint differs",
                        place)
                  : fmt::format("the certificate that {} shows is not the federation's", place);
  return {
      Errc::unauthenticated,
      fmt::format("{}. It was issued by '{}'. If that is a firewall or a proxy of your network, "
                  "which opens TLS connections, ask whoever runs it for an exception for {}; if "
                  "the server was set up anew, join with a new token",
                  what, shown_issuer(ssl), place)};
}

}  // namespace

Result<ssl::context> server_context(const ServerCertificate& certificate,
                                    const Authority& authority) {
  FL_TRY(ssl::context context, make_context(ssl::context::tlsv13_server));
  FL_CHECK(use_pair(context, certificate.chain_pem, certificate.key_pem));
  FL_CHECK(trust(context, authority.trusted_pem(), X509_PURPOSE_SSL_CLIENT));
  SSL_CTX_set_options(context.native_handle(),
                      SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
  return context;
}

Result<ssl::context> client_context(const ClientIdentity& identity) {
  FL_TRY(ssl::context context, make_context(ssl::context::tlsv13_client));
  FL_CHECK(use_pair(context, identity.certificate_pem(), identity.key_pem()));
  FL_CHECK(trust(context, identity.ca_pem(), X509_PURPOSE_SSL_SERVER));
  return context;
}

Result<ssl::context> pinning_client_context(const Sha256& fingerprint) {
  FL_TRY(ssl::context context, make_context(ssl::context::tlsv13_client));
  SSL_CTX* raw = context.native_handle();
  auto pin = std::make_unique<Sha256>(fingerprint);
  if (SSL_CTX_set_ex_data(raw, pin_index(), pin.get()) != 1 ||
      SSL_CTX_set_purpose(raw, X509_PURPOSE_SSL_SERVER) != 1)
    return openssl_error("can't set up TLS");
  SSL_CTX_set_cert_verify_callback(raw, verify_pinned, pin.release());
  context.set_verify_mode(ssl::verify_peer);
  return context;
}

void set_server_name(SSL& ssl, const std::string& host) {
  SSL_set_tlsext_host_name(&ssl, host.c_str());
}

std::optional<std::string> peer_name(const SSL& ssl) {
  const X509* certificate = verified_peer(ssl);
  return certificate ? common_name(*certificate) : std::nullopt;
}

std::optional<std::string> peer_serial(const SSL& ssl) {
  const X509* certificate = verified_peer(ssl);
  return certificate ? serial_hex(*certificate) : std::nullopt;
}

double peer_certificate_end(const SSL& ssl) {
  const X509* certificate = verified_peer(ssl);
  if (certificate == nullptr) return 0;
  const auto valid = validity(*certificate);
  return valid ? valid->not_after : 0;
}

bool shows_foreign_certificate(const SSL& ssl) { return is_foreign(SSL_get_verify_result(&ssl)); }

Error handshake_error(const SSL& ssl, const boost::system::error_code& ec,
                      std::string_view server) {
  const std::string place(server);
  const long verdict = SSL_get_verify_result(&ssl);
  if (verdict == X509_V_ERR_APPLICATION_VERIFICATION || is_foreign(verdict))
    return foreign_error(ssl, place, verdict == X509_V_ERR_APPLICATION_VERIFICATION);
  if (verdict != X509_V_OK)
    return {Errc::unauthenticated, "the certificate of the server at " + place +
                                       " is not valid: " + X509_verify_cert_error_string(verdict)};
  if (is_other_tls(ec))
    return {Errc::unavailable,
            "TLS handshake with " + place + " failed: " + ec.message() +
                ". What answers there does not speak TLS 1.3: it is no Tributary server, or a "
                "firewall or proxy on the way answers in its place"};
  return {is_certificate_alert(ec) ? Errc::unauthenticated : Errc::unavailable,
          "TLS handshake with " + place + " failed: " + ec.message()};
}

}  // namespace fl
