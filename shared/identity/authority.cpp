// SPDX-License-Identifier: Apache-2.0
#include "shared/identity/authority.hpp"

#include "shared/base/io/text_of_bytes.hpp"
#include "shared/net/server_address.hpp"

#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <ctime>

namespace fl {
namespace {

constexpr const char* key_name = "ca.key";
constexpr const char* certificate_name = "ca.crt";
constexpr const char* next_key_name = "ca-next.key";
constexpr const char* next_certificate_name = "ca-next.crt";
constexpr const char* intermediate_name = "ca-intermediate.pem";

constexpr std::size_t client_name_bytes_max = 64;  // ub-common-name of RFC 5280, appendix A.1.

struct Extension {
  int nid;
  std::string value;  // In the syntax of OpenSSL's configuration, x509v3_config(5).
};

/// The contents of a new certificate.
struct Contents {
  std::string common_name;
  EVP_PKEY& key;                 // The key that it certifies.
  const X509* issuer = nullptr;  // Null: self-signed.
  Validity validity;
  std::vector<Extension> extensions;
};

bool set_serial(X509* certificate) {
  using NumberPtr = std::unique_ptr<BIGNUM, FreeWith<BN_free>>;
  // A random serial needs no counter on disk; two random 128-bit numbers never collide in practice.
  const NumberPtr number(BN_new());
  return number && BN_rand(number.get(), 128, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1 &&
         BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate));
}

bool set_validity(X509* certificate, const Validity& validity) {
  return ASN1_TIME_set(X509_getm_notBefore(certificate),
                       static_cast<std::time_t>(validity.not_before)) &&
         ASN1_TIME_set(X509_getm_notAfter(certificate),
                       static_cast<std::time_t>(validity.not_after));
}

bool set_names(X509* certificate, const X509* issuer, const std::string& common_name) {
  X509_NAME* subject = X509_get_subject_name(certificate);
  return X509_NAME_add_entry_by_NID(subject, NID_commonName, MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(common_name.data()),
                                    static_cast<int>(common_name.size()), -1, 0) == 1 &&
         X509_set_issuer_name(certificate, issuer ? X509_get_subject_name(issuer) : subject) == 1;
}

bool add_extensions(X509* certificate, const X509* issuer,
                    const std::vector<Extension>& extensions) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, const_cast<X509*>(issuer ? issuer : certificate), certificate, nullptr,
                 nullptr, 0);
  for (const Extension& extension : extensions) {
    const std::unique_ptr<X509_EXTENSION, FreeWith<X509_EXTENSION_free>> built(
        X509V3_EXT_conf_nid(nullptr, &context, extension.nid, extension.value.c_str()));
    if (!built || X509_add_ext(certificate, built.get(), -1) != 1) return false;
  }
  return true;
}

Result<CertificatePtr> make_certificate(const Contents& contents, EVP_PKEY& signer) {
  CertificatePtr certificate(X509_new());
  X509* raw = certificate.get();
  const bool made = raw && X509_set_version(raw, X509_VERSION_3) == 1 && set_serial(raw) &&
                    set_validity(raw, contents.validity) &&
                    set_names(raw, contents.issuer, contents.common_name) &&
                    X509_set_pubkey(raw, &contents.key) == 1 &&
                    add_extensions(raw, contents.issuer, contents.extensions) &&
                    X509_sign(raw, &signer, EVP_sha256()) > 0;
  if (!made) return openssl_error("can't make a certificate for " + contents.common_name);
  return certificate;
}

Result<CertificatePtr> make_authority_certificate(EVP_PKEY& key, double now) {
  const Contents contents{.common_name = "Tributary authority",
                          .key = key,
                          .validity = {now - clock_skew_s, now + authority_life_s},
                          .extensions = {{NID_basic_constraints, "critical,CA:TRUE,pathlen:1"},
                                         {NID_key_usage, "critical,keyCertSign,cRLSign"},
                                         {NID_subject_key_identifier, "hash"}}};
  return make_certificate(contents, key);
}

Result<CertificatePtr> make_intermediate_certificate(EVP_PKEY& key, const X509& authority,
                                                     const Validity& life, EVP_PKEY& signer) {
  const Contents contents{.common_name = "Tributary intermediate authority",
                          .key = key,
                          .issuer = &authority,
                          .validity = life,
                          .extensions = {{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                                         {NID_key_usage, "critical,keyCertSign,cRLSign"},
                                         {NID_subject_key_identifier, "hash"},
                                         {NID_authority_key_identifier, "keyid"}}};
  return make_certificate(contents, signer);
}

/// The extensions of server and client certificates; only `usage` differs.
std::vector<Extension> leaf_extensions(std::string usage) {
  return {{NID_basic_constraints, "critical,CA:FALSE"},
          {NID_key_usage, "critical,digitalSignature"},
          {NID_ext_key_usage, "critical," + std::move(usage)},
          {NID_subject_key_identifier, "hash"},
          {NID_authority_key_identifier, "keyid"}};
}

/// Writes the key, encrypted if there is a passphrase.
Result<void> write_key(Files& files, const std::filesystem::path& path, const EVP_PKEY& key,
                       const std::string& passphrase) {
  FL_TRY(const std::string pem, to_pem(key, passphrase));
  return files.write_atomically(path, bytes_of(pem));
}

/// The key in the text of this file.
Result<KeyPtr> key_of(const std::string& pem, const std::filesystem::path& path,
                      const std::string& passphrase) {
  const bool is_encrypted = is_encrypted_key(pem);
  if (is_encrypted && passphrase.empty()) {
    return Error(Errc::unauthenticated,
                 path.string() + " is encrypted: give its passphrase with --ca-passphrase-file");
  }
  auto key = is_encrypted ? open_key(pem, passphrase) : parse_key(pem);
  if (!key && is_encrypted) {
    return Error(Errc::unauthenticated,
                 "the passphrase of --ca-passphrase-file does not open " + path.string());
  }
  if (!key) return key.error().at(path.string());
  return key;
}

Result<KeyPtr> open_or_create_key(Files& files, const std::filesystem::path& path,
                                  const std::string& passphrase) {
  if (!files.exists(path)) {
    FL_TRY(KeyPtr key, make_key());
    FL_CHECK(write_key(files, path, *key, passphrase));
    return key;
  }
  FL_TRY(const std::string pem, files.read_all(path));
  FL_TRY(KeyPtr key, key_of(pem, path, passphrase));
  if (!is_encrypted_key(pem) && !passphrase.empty())
    FL_CHECK(write_key(files, path, *key, passphrase));
  return key;
}

Result<CertificatePtr> open_certificate(Files& files, const std::filesystem::path& path) {
  FL_TRY(const std::string pem, files.read_all(path));
  auto certificate = parse_certificate(pem);
  if (!certificate) return certificate.error().at(path.string());
  return certificate;
}

/// Does the last step of finish_rotation(), if a crash has come before it: the intermediate of the
/// dropped authority is removed.
Result<void> drop_old_intermediate(Files& files, const std::filesystem::path& folder) {
  if (!files.exists(folder / key_name)) return {};
  FL_TRY(const CertificatePtr authority, open_certificate(files, folder / certificate_name));
  FL_TRY(const CertificatePtr intermediate, open_certificate(files, folder / intermediate_name));
  if (is_signed_by(*intermediate, *authority)) return {};
  FL_CHECK(files.remove(folder / intermediate_name));
  return files.sync_folder(folder);
}

Result<CertificatePtr> open_or_create_certificate(Files& files, const std::filesystem::path& path,
                                                  EVP_PKEY& key, double now) {
  if (files.exists(path)) return open_certificate(files, path);
  FL_TRY(CertificatePtr certificate, make_authority_certificate(key, now));
  FL_TRY(const std::string pem, to_pem(*certificate));
  FL_CHECK(files.write_atomically(path, bytes_of(pem)));
  return certificate;
}

/// Does the second step of finish_rotation(), if a crash has come between the two.
Result<void> complete_rotation(Files& files, const std::filesystem::path& folder,
                               const std::string& passphrase) {
  const auto certificate_path = folder / next_certificate_name;
  if (!files.exists(certificate_path) || files.exists(folder / next_key_name)) return {};
  FL_TRY(const KeyPtr key, open_or_create_key(files, folder / key_name, passphrase));
  FL_TRY(const std::string pem, files.read_all(certificate_path));
  FL_TRY(const CertificatePtr certificate, parse_certificate(pem));
  if (!fits(*certificate, *key))
    return Error(Errc::corrupt, certificate_path.string() +
                                    " exists, but its key is missing: restore the identity folder "
                                    "from a backup");
  FL_CHECK(files.rename(certificate_path, folder / certificate_name));
  return files.sync_folder(folder);
}

Result<void> check_life(const Validity& life, const std::filesystem::path& path, double now) {
  if (now <= life.not_after) return {};
  return Error(Errc::unauthenticated, path.string() + " has expired");
}

/// The validity of a server or client certificate that is made now: not longer than its issuer. An
/// authority that has expired is not opened; an intermediate is, as it can be replaced.
Result<Validity> leaf_life(const Validity& issuer, double now) {
  if (now > issuer.not_after)
    return Error(Errc::unauthenticated,
                 "the intermediate authority has expired: put ca.key back into the identity "
                 "folder, and run 'fl-server rotate-ca --intermediate'");
  return Validity{now - clock_skew_s, std::min(now + certificate_life_s, issuer.not_after)};
}

/// The subject alternative names in OpenSSL's syntax. The hosts are checked, so that none can
/// inject further entries.
Result<std::string> alternative_names(const std::vector<std::string>& hosts) {
  if (hosts.empty())
    return Error(Errc::invalid_input, "a server certificate needs at least one host name");
  std::string names;
  for (const std::string& host : hosts) {
    FL_CHECK(check_host(host));
    names += (names.empty() ? "" : ",") + std::string(is_ip_address(host) ? "IP:" : "DNS:") + host;
  }
  return names;
}

}  // namespace

Result<void> check_client_name(std::string_view name) {
  const auto wrong = [&](std::string_view why) {
    return Error(Errc::invalid_input, "client name \"" +
                                          std::string(name.substr(0, client_name_bytes_max)) +
                                          "\" " + std::string(why));
  };
  constexpr std::string_view first =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  if (name.empty()) return wrong("is empty");
  if (name.size() > client_name_bytes_max) return wrong("... has more than 64 characters");
  if (first.find(name.front()) == first.npos) return wrong("must begin with a letter or digit");
  if (name.find_first_not_of(std::string(first) + "._-") != name.npos)
    return wrong("may contain only letters, digits, '.', '_' and '-'");
  return {};
}

Result<Authority::Signer> Authority::signer_of(KeyPtr key, CertificatePtr certificate) {
  Signer signer;
  FL_TRY(signer.life, validity(*certificate));
  FL_TRY(signer.pem, to_pem(*certificate));
  FL_TRY(signer.fingerprint, spki_fingerprint(*certificate));
  signer.key = std::move(key);
  signer.certificate = std::move(certificate);
  return signer;
}

/// Opens an authority whose key is kept elsewhere.
Result<Authority::Signer> Authority::open_signer_elsewhere(Files& files,
                                                           const std::filesystem::path& path,
                                                           double now) {
  FL_TRY(CertificatePtr certificate, open_certificate(files, path));
  FL_TRY(Signer signer, signer_of(nullptr, std::move(certificate)));
  FL_CHECK(check_life(signer.life, path, now));
  return signer;
}

Result<Authority::Signer> Authority::open_signer(Files& files,
                                                 const std::filesystem::path& key_path,
                                                 const std::filesystem::path& certificate_path,
                                                 double now, const std::string& passphrase) {
  if (files.exists(certificate_path) && !files.exists(key_path))
    return Error(Errc::corrupt, certificate_path.string() + " exists, but its key " +
                                    key_path.string() +
                                    " is missing: restore the identity folder from a backup");
  FL_TRY(KeyPtr key, open_or_create_key(files, key_path, passphrase));
  FL_TRY(CertificatePtr certificate,
         open_or_create_certificate(files, certificate_path, *key, now));
  if (!fits(*certificate, *key))
    return Error(Errc::corrupt, key_path.string() + " is not the key of " +
                                    certificate_path.string() +
                                    ": restore the identity folder from a backup");
  if (!is_signed_by(*certificate, *certificate))
    return Error(Errc::corrupt, certificate_path.string() + " is not signed by its own key");
  FL_TRY(Signer signer, signer_of(std::move(key), std::move(certificate)));
  FL_CHECK(check_life(signer.life, certificate_path, now));
  return signer;
}

Result<void> Authority::open_intermediate(Files& files, const std::filesystem::path& path,
                                          double now, const std::string& passphrase) {
  FL_TRY(const std::string pem, files.read_all(path));
  FL_TRY(KeyPtr key, key_of(pem, path, passphrase));
  auto certificates = parse_certificates(pem);
  if (!certificates) return certificates.error().at(path.string());
  CertificatePtr& newest = certificates->front();
  if (!fits(*newest, *key) || !is_signed_by(*newest, *current_.certificate))
    return Error(Errc::corrupt, path.string() +
                                    " does not belong to ca.crt beside it: restore the identity "
                                    "folder from a backup");
  FL_TRY(intermediate_, signer_of(std::move(key), std::move(newest)));
  former_pem_.clear();
  for (auto former = certificates->begin() + 1; former != certificates->end(); ++former) {
    FL_TRY(const Validity life, validity(**former));
    FL_TRY(const std::string text, to_pem(**former));
    if (now <= life.not_after) former_pem_ += text;
  }
  if (!is_encrypted_key(pem) && !passphrase.empty())
    return write_intermediate(files, path, passphrase);
  return {};
}

Result<void> Authority::write_intermediate(Files& files, const std::filesystem::path& path,
                                           const std::string& passphrase) const {
  FL_TRY(const std::string key, to_pem(*intermediate_->key, passphrase));
  return files.write_atomically(path, bytes_of(key + intermediate_->pem + former_pem_));
}

Result<Authority> Authority::open_or_create(Files& files, const std::filesystem::path& folder,
                                            double now, const std::string& passphrase) {
  FL_CHECK(files.make_folder(folder));
  FL_CHECK(complete_rotation(files, folder, passphrase));
  const auto certificate_path = folder / certificate_name;
  const auto intermediate_path = folder / intermediate_name;
  if (files.exists(intermediate_path)) FL_CHECK(drop_old_intermediate(files, folder));
  const bool has_intermediate = files.exists(intermediate_path);
  Signer current;
  if (has_intermediate) {
    FL_TRY(current, open_signer_elsewhere(files, certificate_path, now));
  } else {
    FL_TRY(current, open_signer(files, folder / key_name, certificate_path, now, passphrase));
  }
  Authority authority(std::move(current));
  if (has_intermediate)
    FL_CHECK(authority.open_intermediate(files, intermediate_path, now, passphrase));
  if (files.exists(folder / next_key_name)) {
    FL_TRY(authority.next_, open_signer(files, folder / next_key_name,
                                        folder / next_certificate_name, now, passphrase));
  }
  return authority;
}

Result<void> Authority::begin_rotation(Files& files, const std::filesystem::path& folder,
                                       double now, const std::string& passphrase) {
  if (next_) {
    return Error(Errc::conflict,
                 "there is a new authority already: 'fl-server rotate-ca --finish' drops the old "
                 "one");
  }
  FL_TRY(next_, open_signer(files, folder / next_key_name, folder / next_certificate_name, now,
                            passphrase));
  return {};
}

Result<void> Authority::finish_rotation(Files& files, const std::filesystem::path& folder) {
  if (!next_) {
    return Error(Errc::conflict,
                 "there is only one authority: 'fl-server rotate-ca' makes a new one");
  }
  FL_CHECK(files.rename(folder / next_key_name, folder / key_name));
  FL_CHECK(files.sync_folder(folder));  // Writes the key first: complete_rotation() relies on it.
  FL_CHECK(files.rename(folder / next_certificate_name, folder / certificate_name));
  FL_CHECK(files.sync_folder(folder));
  if (intermediate_) {  // drop_old_intermediate() does this after a crash.
    FL_CHECK(files.remove(folder / intermediate_name));
    FL_CHECK(files.sync_folder(folder));
  }
  current_ = std::move(*next_);
  intermediate_.reset();
  former_pem_.clear();
  next_.reset();
  return {};
}

Result<void> Authority::make_intermediate(Files& files, const std::filesystem::path& folder,
                                          double now, const std::string& passphrase) {
  if (next_) {
    return Error(Errc::conflict,
                 "the authority is being changed: run 'fl-server rotate-ca --finish' first");
  }
  if (X509_get_pathlen(current_.certificate.get()) == 0) {
    return Error(Errc::conflict,
                 "this authority was made by an earlier version and may not have an intermediate: "
                 "change it with 'fl-server rotate-ca' first");
  }
  const auto key_path = folder / key_name;
  if (!files.exists(key_path)) {
    return Error(Errc::not_found,
                 key_path.string() +
                     " is missing, and only it can certify an intermediate: put it "
                     "back, and take it away again afterwards");
  }
  FL_TRY(const KeyPtr signer, open_or_create_key(files, key_path, passphrase));
  if (!fits(*current_.certificate, *signer))
    return Error(Errc::corrupt, key_path.string() + " is not the key of ca.crt beside it");
  FL_TRY(KeyPtr key, make_key());
  const Validity life{now - clock_skew_s,
                      std::min(now + intermediate_life_s, current_.life.not_after)};
  FL_TRY(CertificatePtr certificate,
         make_intermediate_certificate(*key, *current_.certificate, life, *signer));
  if (intermediate_) former_pem_ = intermediate_->pem + former_pem_;
  FL_TRY(intermediate_, signer_of(std::move(key), std::move(certificate)));
  return write_intermediate(files, folder / intermediate_name, passphrase);
}

std::string Authority::trusted_pem() const {
  std::string pem = current_.pem;
  if (intermediate_) pem += intermediate_->pem + former_pem_;
  if (next_) pem += next_->pem;
  return pem;
}

std::optional<Validity> Authority::intermediate_life() const {
  if (!intermediate_) return std::nullopt;
  return intermediate_->life;
}

Result<Sha256> authority_fingerprint(Files& files, const std::filesystem::path& folder) {
  FL_TRY(const std::string pem, files.read_all(folder / certificate_name));
  FL_TRY(const CertificatePtr certificate, parse_certificate(pem));
  return spki_fingerprint(*certificate);
}

Result<ClientCertificate> Authority::issue_client(std::string_view name,
                                                  std::string_view request_pem, double now) const {
  FL_CHECK(check_client_name(name));
  FL_TRY(const RequestPtr request, parse_request(request_pem));
  EVP_PKEY* key = X509_REQ_get0_pubkey(request.get());
  if (!key || !is_p256(*key)) {
    ERR_clear_error();
    return Error(Errc::invalid_input, "the signing request's key is not ECDSA on P-256");
  }
  if (X509_REQ_verify(request.get(), key) != 1) {
    ERR_clear_error();
    return Error(Errc::invalid_input, "the signing request is not signed by its own key");
  }
  const Signer& signer = client_signer();
  FL_TRY(const Validity life, leaf_life(signer.life, now));
  const Contents contents{.common_name = std::string(name),
                          .key = *key,
                          .issuer = signer.certificate.get(),
                          .validity = life,
                          .extensions = leaf_extensions("clientAuth")};
  FL_TRY(const CertificatePtr certificate, make_certificate(contents, *signer.key));
  FL_TRY(std::string pem, to_pem(*certificate));
  FL_TRY(const Sha256 key_hash, spki_fingerprint(*certificate));
  return ClientCertificate{std::move(pem), serial_hex(*certificate).value(),
                           to_hex(std::as_bytes(std::span(key_hash)))};
}

Result<ServerCertificate> Authority::issue_server(const std::vector<std::string>& hosts,
                                                  double now) const {
  FL_TRY(std::string names, alternative_names(hosts));
  FL_TRY(const KeyPtr key, make_key());
  const Signer& signer = server_signer();
  FL_TRY(const Validity life, leaf_life(signer.life, now));
  Contents contents{.common_name = "Tributary server",
                    .key = *key,
                    .issuer = signer.certificate.get(),
                    .validity = life,
                    .extensions = leaf_extensions("serverAuth")};
  contents.extensions.push_back({NID_subject_alt_name, std::move(names)});
  FL_TRY(const CertificatePtr certificate, make_certificate(contents, *signer.key));
  FL_TRY(std::string key_pem, to_pem(*key));
  FL_TRY(const std::string pem, to_pem(*certificate));
  const std::string chain = pem + (intermediate_ ? intermediate_->pem : "") + current_.pem;
  return ServerCertificate{std::move(key_pem), chain, life};
}

}  // namespace fl
