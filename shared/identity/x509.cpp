// SPDX-License-Identifier: Apache-2.0
#include "shared/identity/x509.hpp"

#include "shared/base/io/text_of_bytes.hpp"

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include <ctime>

namespace fl {
namespace {

using BioPtr = std::unique_ptr<BIO, FreeWith<BIO_free>>;

/// A BIO for reading `pem`, which must outlive it. Null when out of memory.
BioPtr bio_on(std::string_view pem) {
  return BioPtr(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

/// Returns the text that write(bio) writes.
template <class Write>
Result<std::string> written(Write write) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  if (!bio || write(bio.get()) != 1) return openssl_error("can't write PEM");
  const char* text = nullptr;
  const long length = BIO_get_mem_data(bio.get(), &text);
  return std::string(text, static_cast<std::size_t>(length));
}

/// Password callback for the PEM readers. Without it OpenSSL asks on the terminal for the password
/// of an encrypted file.
int no_password(char*, int, int, void*) { return -1; }
int give_password(char* out, int size, int, void* passphrase) {
  const auto& text = *static_cast<const std::string*>(passphrase);
  if (text.empty() || text.size() > static_cast<std::size_t>(size)) return -1;
  text.copy(out, text.size());
  return static_cast<int>(text.size());
}

/// Takes over the result of a PEM reader. Null means that the text was not a `what`.
template <class Ptr>
Result<Ptr> checked(typename Ptr::pointer object, Errc code, std::string_view what) {
  if (object) return Ptr(object);
  ERR_clear_error();
  return Error(code, "not a valid " + std::string(what) + " in PEM format");
}

Result<double> unix_seconds(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) {
    ERR_clear_error();
    return Error(Errc::corrupt, "the certificate has an invalid date");
  }
  return static_cast<double>(timegm(&parts));
}

}  // namespace

Result<KeyPtr> make_key() {
  KeyPtr key(EVP_EC_gen("P-256"));
  if (!key) return openssl_error("can't make a P-256 key");
  return key;
}

Result<RequestPtr> make_request(EVP_PKEY& key) {
  RequestPtr request(X509_REQ_new());
  if (!request || X509_REQ_set_version(request.get(), X509_REQ_VERSION_1) != 1 ||
      X509_REQ_set_pubkey(request.get(), &key) != 1 ||
      X509_REQ_sign(request.get(), &key, EVP_sha256()) <= 0)
    return openssl_error("can't make a signing request");
  return request;
}

Result<std::string> to_pem(const EVP_PKEY& key, const std::string& passphrase) {
  const EVP_CIPHER* const cipher = passphrase.empty() ? nullptr : EVP_aes_256_cbc();
  return written([&](BIO* bio) {
    return PEM_write_bio_PKCS8PrivateKey(bio, &key, cipher, passphrase.data(),
                                         static_cast<int>(passphrase.size()), nullptr, nullptr);
  });
}

Result<std::string> to_pem(const X509& certificate) {
  return written([&](BIO* bio) { return PEM_write_bio_X509(bio, &certificate); });
}

Result<std::string> to_pem(const X509_REQ& request) {
  return written([&](BIO* bio) { return PEM_write_bio_X509_REQ(bio, &request); });
}

Result<KeyPtr> parse_key(std::string_view pem) {
  const BioPtr bio = bio_on(pem);
  EVP_PKEY* key = PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, nullptr);
  return checked<KeyPtr>(key, Errc::corrupt, "private key");
}

Result<KeyPtr> open_key(std::string_view pem, const std::string& passphrase) {
  const BioPtr bio = bio_on(pem);
  EVP_PKEY* key = PEM_read_bio_PrivateKey(bio.get(), nullptr, give_password,
                                          const_cast<std::string*>(&passphrase));
  return checked<KeyPtr>(key, Errc::corrupt, "private key");
}

bool is_encrypted_key(std::string_view pem) {
  return pem.find("-----BEGIN ENCRYPTED PRIVATE KEY-----") != pem.npos;
}

Result<CertificatePtr> parse_certificate(std::string_view pem) {
  const BioPtr bio = bio_on(pem);
  X509* certificate = PEM_read_bio_X509(bio.get(), nullptr, no_password, nullptr);
  return checked<CertificatePtr>(certificate, Errc::corrupt, "certificate");
}

Result<std::vector<CertificatePtr>> parse_certificates(std::string_view pem) {
  const BioPtr bio = bio_on(pem);
  std::vector<CertificatePtr> all;
  while (X509* one = PEM_read_bio_X509(bio.get(), nullptr, no_password, nullptr))
    all.emplace_back(one);
  ERR_clear_error();
  if (all.empty()) return Error(Errc::corrupt, "not a valid certificate in PEM format");
  return all;
}

Result<RequestPtr> parse_request(std::string_view pem) {
  const BioPtr bio = bio_on(pem);
  X509_REQ* request = PEM_read_bio_X509_REQ(bio.get(), nullptr, no_password, nullptr);
  return checked<RequestPtr>(request, Errc::invalid_input, "signing request");
}

bool is_p256(const EVP_PKEY& key) {
  char group[32];
  std::size_t length = 0;
  const bool named = EVP_PKEY_is_a(&key, "EC") == 1 &&
                     EVP_PKEY_get_group_name(&key, group, sizeof group, &length) == 1;
  if (!named) ERR_clear_error();
  return named && std::string_view(group, length) == SN_X9_62_prime256v1;
}

bool fits(const X509& certificate, const EVP_PKEY& key) {
  const EVP_PKEY* certified = X509_get0_pubkey(&certificate);
  const bool equal = certified && EVP_PKEY_eq(certified, &key) == 1;
  if (!equal) ERR_clear_error();
  return equal;
}

bool is_signed_by(X509& certificate, const X509& authority) {
  EVP_PKEY* key = X509_get0_pubkey(&authority);
  const bool valid = key && X509_verify(&certificate, key) == 1;
  if (!valid) ERR_clear_error();
  return valid;
}

std::optional<std::string> common_name(const X509& certificate) {
  const X509_NAME* subject = X509_get_subject_name(&certificate);
  const int index = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (index < 0 || X509_NAME_get_index_by_NID(subject, NID_commonName, index) >= 0) return {};
  const ASN1_STRING* text = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, index));
  return std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                     static_cast<std::size_t>(ASN1_STRING_length(text)));
}

std::optional<std::string> serial_hex(const X509& certificate) {
  using NumberPtr = std::unique_ptr<BIGNUM, FreeWith<BN_free>>;
  const NumberPtr number(ASN1_INTEGER_to_BN(X509_get0_serialNumber(&certificate), nullptr));
  std::array<unsigned char, 16> bytes;
  if (!number || BN_bn2binpad(number.get(), bytes.data(), bytes.size()) < 0) {
    ERR_clear_error();
    return {};
  }
  return to_hex(std::as_bytes(std::span(bytes)));
}

Result<Sha256> spki_fingerprint(const X509& certificate) {
  unsigned char* der = nullptr;
  const int length = i2d_X509_PUBKEY(X509_get_X509_PUBKEY(&certificate), &der);
  if (length < 0) return openssl_error("can't encode a public key");
  const Sha256 digest = sha256(std::as_bytes(std::span(der, static_cast<std::size_t>(length))));
  OPENSSL_free(der);
  return digest;
}

Result<Validity> validity(const X509& certificate) {
  FL_TRY(const double not_before, unix_seconds(X509_get0_notBefore(&certificate)));
  FL_TRY(const double not_after, unix_seconds(X509_get0_notAfter(&certificate)));
  return Validity{not_before, not_after};
}

}  // namespace fl
