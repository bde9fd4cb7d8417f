// SPDX-License-Identifier: Apache-2.0
// OpenSSL's keys, certificates and signing requests as owned handles, with the functions that we
// need. All keys are ECDSA on P-256. Times are Unix seconds. Any thread; one thread at a time uses
// a handle.
//
// Errors: a text that is not the expected PEM object is `corrupt` or, for a signing request, which
// comes from a peer, `invalid_input`. A failure of OpenSSL itself is `internal`.
#pragma once

#include "shared/identity/crypto.hpp"

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

/// A deleter that calls the given OpenSSL function.
template <auto free_function>
struct FreeWith {
  template <class T>
  void operator()(T* object) const noexcept {
    free_function(object);
  }
};

using KeyPtr = std::unique_ptr<EVP_PKEY, FreeWith<EVP_PKEY_free>>;
using CertificatePtr = std::unique_ptr<X509, FreeWith<X509_free>>;
using RequestPtr = std::unique_ptr<X509_REQ, FreeWith<X509_REQ_free>>;

[[nodiscard]] Result<KeyPtr> make_key();
/// Makes a PKCS #10 signing request (RFC 2986). It is signed with the key, which proves to the
/// authority that we hold it. The subject is empty, because the authority chooses the name.
[[nodiscard]] Result<RequestPtr> make_request(EVP_PKEY& key);

/// PEM. Keys are PKCS #8, encrypted (AES-256, PBKDF2) if there is a passphrase. Without one the
/// mode of their file protects them.
[[nodiscard]] Result<std::string> to_pem(const EVP_PKEY& key, const std::string& passphrase = "");
[[nodiscard]] Result<std::string> to_pem(const X509& certificate);
[[nodiscard]] Result<std::string> to_pem(const X509_REQ& request);

[[nodiscard]] Result<KeyPtr> parse_key(std::string_view pem);
/// Opens an encrypted key.
[[nodiscard]] Result<KeyPtr> open_key(std::string_view pem, const std::string& passphrase);
[[nodiscard]] bool is_encrypted_key(std::string_view pem);
[[nodiscard]] Result<CertificatePtr> parse_certificate(std::string_view pem);
/// All certificates of the text, at least one.
[[nodiscard]] Result<std::vector<CertificatePtr>> parse_certificates(std::string_view pem);
[[nodiscard]] Result<RequestPtr> parse_request(std::string_view pem);

/// Whether the key is ECDSA on P-256, the only kind that we make and certify.
[[nodiscard]] bool is_p256(const EVP_PKEY& key);
/// Whether the certificate is for this key.
[[nodiscard]] bool fits(const X509& certificate, const EVP_PKEY& key);
/// Whether the authority's key signed the certificate. Does not check dates or purpose.
[[nodiscard]] bool is_signed_by(X509& certificate, const X509& authority);

/// The subject's common name; none unless there is exactly one.
[[nodiscard]] std::optional<std::string> common_name(const X509& certificate);
/// The serial number as 32 lower-case hexadecimal digits; none if it has more than 128 bits, which
/// no serial number of ours has.
[[nodiscard]] std::optional<std::string> serial_hex(const X509& certificate);
/// SHA-256 of the certificate's SubjectPublicKeyInfo in DER (RFC 5280, section 4.1.2.7). It
/// identifies the key, whatever certificate the key is in.
[[nodiscard]] Result<Sha256> spki_fingerprint(const X509& certificate);

struct Validity {
  double not_before = 0;
  double not_after = 0;

  /// When to renew: after two thirds of the validity, so that a client that is offline for weeks
  /// can still renew in time.
  [[nodiscard]] double renew_at() const { return not_before + (not_after - not_before) * 2 / 3; }
};
[[nodiscard]] Result<Validity> validity(const X509& certificate);

}  // namespace fl
