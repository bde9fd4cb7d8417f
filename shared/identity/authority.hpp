// The server's own certificate authority: one P-256 key and one self-signed certificate in
// STATE/identity, made at the first start. It certifies the clients that were invited, and the
// server itself; both ends trust it and nothing else. What a certificate may do stands in its
// extended key usage (clientAuth or serverAuth, never both), so that no client can pass for the
// server.
//
// Immutable once open; any thread. Times are Unix seconds. Issuing touches no disk.
#pragma once

#include "shared/base/io/file.hpp"
#include "shared/identity/x509.hpp"

#include <vector>

namespace fl {

inline constexpr double day_s = 86400;
inline constexpr double authority_life_s = 20 * 365 * day_s;
inline constexpr double certificate_life_s = 90 * day_s;
/// Certificates begin this much in the past, for peers whose clock is behind ours.
inline constexpr double clock_skew_s = 300;

/// 1 to 64 letters, digits, '.', '_' and '-', the first a letter or digit (names become files and
/// arguments). Otherwise invalid_input, with the reason.
[[nodiscard]] Result<void> check_client_name(std::string_view name);

struct ClientCertificate {
  std::string pem;
  std::string serial;      // 32 lower-case hexadecimal digits, as peer_serial() gives it.
  std::string key_digest;  // SHA-256 of the key's SubjectPublicKeyInfo, hexadecimal.
};

/// The server's own end of TLS. Kept in memory only and made anew at every start; a server that
/// runs longer than renew_at makes another and a new TLS context with it.
struct ServerCertificate {
  std::string key_pem;
  std::string chain_pem;  // Leaf, then authority: enrolling clients know only the latter's hash.
  double renew_at = 0;
};

class Authority {
 public:
  /// Loads FOLDER/ca.key and FOLDER/ca.crt, or makes them (and the folder) when neither is there.
  /// The key is written first: a key alone is what a crash at the first start leaves behind, and
  /// gets its certificate now. Errors name the file: corrupt (unreadable, truncated, a pair that
  /// doesn't fit, a certificate without its key), unauthenticated (expired), and those of Files.
  static Result<Authority> open_or_create(Files& files, const std::filesystem::path& folder,
                                          double now);

  [[nodiscard]] const std::string& certificate_pem() const { return certificate_pem_; }
  [[nodiscard]] const Sha256& fingerprint() const { return fingerprint_; }

  /// A client certificate for `name` and the key in the signing request (PEM), for 90 days. The
  /// request's own signature must be right, which proves that the peer holds the key; nothing else
  /// in it counts. invalid_input: a bad name, a bad request, a key that isn't P-256.
  [[nodiscard]] Result<ClientCertificate> issue_client(std::string_view name,
                                                       std::string_view request_pem,
                                                       double now) const;

  /// A new key and a server certificate for it, for 90 days. `hosts` are the names and addresses
  /// that clients reach the server by (at least one, else invalid_input); our own clients don't
  /// look at them, browsers and curl do.
  [[nodiscard]] Result<ServerCertificate> issue_server(const std::vector<std::string>& hosts,
                                                       double now) const;

 private:
  Authority(KeyPtr key, CertificatePtr certificate, std::string certificate_pem,
            const Sha256& fingerprint)
      : key_(std::move(key)),
        certificate_(std::move(certificate)),
        certificate_pem_(std::move(certificate_pem)),
        fingerprint_(fingerprint) {}

  KeyPtr key_;
  CertificatePtr certificate_;
  std::string certificate_pem_;
  Sha256 fingerprint_;
};

}  // namespace fl
