// SPDX-License-Identifier: Apache-2.0
// The server's own certificate authority: one P-256 key and one self-signed certificate in
// STATE/identity, made at the first start. It issues the certificates of the server and of the
// clients that were invited. Server and clients trust this authority only. The extended key usage
// of a certificate is clientAuth or serverAuth, never both, so no client can pass for the server.
//
// An open Authority does not change; use it from any thread. Times are Unix seconds. Issuing a
// certificate does not touch the disk.
#pragma once

#include "shared/base/io/file.hpp"
#include "shared/identity/x509.hpp"

#include <vector>

namespace fl {

inline constexpr double day_s = 86400;
inline constexpr double authority_life_s = 20 * 365 * day_s;
inline constexpr double intermediate_life_s = 365 * day_s;
inline constexpr double certificate_life_s = 90 * day_s;
/// Certificates are valid from this long before now, for peers whose clock is behind ours.
inline constexpr double clock_skew_s = 300;

/// A client name has 1 to 64 characters: letters, digits, '.', '_' and '-', the first a letter or
/// digit (names become file names and arguments). Anything else is invalid_input, with the reason.
[[nodiscard]] Result<void> check_client_name(std::string_view name);

struct ClientCertificate {
  std::string pem;
  std::string serial;      // 32 lower-case hexadecimal digits, as peer_serial() gives it.
  std::string key_digest;  // SHA-256 of the key's SubjectPublicKeyInfo, hexadecimal.
};

/// The server's key and certificate for TLS. They are kept in memory only and made at every start.
/// When they are due the server makes new ones and a new TLS context.
struct ServerCertificate {
  std::string key_pem;
  /// The server's certificate, then the authority's, because a client that enrols knows only the
  /// hash of the authority's key.
  std::string chain_pem;
  Validity life;

  /// Whether a new one must be made: two thirds of its life are over, or the clock was set back to
  /// before it.
  [[nodiscard]] bool is_due(double now) const {
    return now < life.not_before || now >= life.renew_at();
  }
};

/// The authority. While it is changed for a new one (rotate-ca), there are two for some time:
///   - both are trusted;
///   - the old one certifies the server, as members who were away know no other, and is the one in
///     join tokens;
///   - the new one certifies clients, who get both authorities' certificates with theirs. A client
///     whose certificate is not of the newest authority renews it.
/// Then the old authority is dropped. Files: ca.key and ca.crt, and ca-next.key and ca-next.crt
/// meanwhile.
///
/// With an intermediate authority (rotate-ca --intermediate) the authority's own key is needed no
/// more until the next one is made, and may be kept elsewhere. The intermediate certifies the
/// server and the clients, who trust the authority and the intermediate. ca-intermediate.pem has
/// its key and certificate, then the certificates of earlier ones that have not expired: their
/// clients are still let in. An intermediate that has
/// expired issues nothing.
class Authority {
 public:
  /// Loads FOLDER/ca.key and FOLDER/ca.crt. If neither exists, makes them and the folder. The key
  /// is written first, so a crash at the first start may leave a key without a certificate; then
  /// this makes the certificate. With a passphrase the keys' files are encrypted, also existing
  /// ones that are not. Errors name the file: corrupt (unreadable, key and certificate don't match,
  /// or a certificate without a key), unauthenticated (expired, no or a wrong passphrase), and
  /// those of Files. Where there is an intermediate, FOLDER/ca.key is not looked at.
  static Result<Authority> open_or_create(Files& files, const std::filesystem::path& folder,
                                          double now, const std::string& passphrase = "");

  /// Makes the new authority. `conflict`: there are two already.
  [[nodiscard]] Result<void> begin_rotation(Files& files, const std::filesystem::path& folder,
                                            double now, const std::string& passphrase);
  /// Drops the old authority, with its intermediate. `conflict`: there is only one.
  [[nodiscard]] Result<void> finish_rotation(Files& files, const std::filesystem::path& folder);
  /// Makes an intermediate, which replaces an existing one. Needs FOLDER/ca.key, else not_found.
  /// `conflict`: there are two authorities, or this one may not have an intermediate.
  [[nodiscard]] Result<void> make_intermediate(Files& files, const std::filesystem::path& folder,
                                               double now, const std::string& passphrase);

  /// The authority that certifies the server and that join tokens name.
  [[nodiscard]] const std::string& certificate_pem() const { return current_.pem; }
  [[nodiscard]] const Sha256& fingerprint() const { return current_.fingerprint; }
  /// All certificates that are trusted, the current authority first, with its intermediates.
  [[nodiscard]] std::string trusted_pem() const;
  /// The validity of the intermediate, if there is one.
  [[nodiscard]] std::optional<Validity> intermediate_life() const;

  /// Issues a client certificate, valid for 90 days at most, for `name` and the key in the signing
  /// request (PEM). The request's signature must be valid, which proves that the peer holds the
  /// key; all other contents of the request are ignored. invalid_input: a bad name, a bad request,
  /// or a key that is not P-256.
  [[nodiscard]] Result<ClientCertificate> issue_client(std::string_view name,
                                                       std::string_view request_pem,
                                                       double now) const;

  /// Makes a new key and issues a server certificate for it, valid for 90 days at most. `hosts` are
  /// the host names and IP addresses of the server, at least one, else invalid_input. Browsers and
  /// curl check them; our own clients don't.
  [[nodiscard]] Result<ServerCertificate> issue_server(const std::vector<std::string>& hosts,
                                                       double now) const;

 private:
  /// A key and its certificate.
  struct Signer {
    KeyPtr key;  // Null: the key is kept elsewhere, and an intermediate signs.
    CertificatePtr certificate;
    std::string pem;
    Sha256 fingerprint{};
    Validity life;
  };
  explicit Authority(Signer current) : current_(std::move(current)) {}
  static Result<Signer> signer_of(KeyPtr key, CertificatePtr certificate);
  static Result<Signer> open_signer_elsewhere(Files& files, const std::filesystem::path& path,
                                              double now);
  static Result<Signer> open_signer(Files& files, const std::filesystem::path& key_path,
                                    const std::filesystem::path& certificate_path, double now,
                                    const std::string& passphrase);
  [[nodiscard]] Result<void> open_intermediate(Files& files, const std::filesystem::path& path,
                                               double now, const std::string& passphrase);
  [[nodiscard]] Result<void> write_intermediate(Files& files, const std::filesystem::path& path,
                                                const std::string& passphrase) const;
  [[nodiscard]] const Signer& server_signer() const {
    return intermediate_ ? *intermediate_ : current_;
  }
  [[nodiscard]] const Signer& client_signer() const { return next_ ? *next_ : server_signer(); }

  Signer current_;
  std::optional<Signer> intermediate_;
  std::string former_pem_;  // Certificates of earlier intermediates.
  std::optional<Signer> next_;
};

/// The fingerprint in FOLDER/ca.crt, for which no key is needed. not_found: there is no authority.
[[nodiscard]] Result<Sha256> authority_fingerprint(Files& files,
                                                   const std::filesystem::path& folder);

}  // namespace fl
