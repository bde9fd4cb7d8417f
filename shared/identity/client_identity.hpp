// Who a client is: its key, its certificate, the authority it trusts and where the server is, in
// CLIENT_STATE/identity. The key is made here and never leaves the machine.
//
//   key.pem        private key (0600)
//   key.pem.new    key of the next certificate, while one is asked for
//   cert.pem       certificate, of the server's authority
//   ca.pem         the authority's certificate
//   identity.json  {"server": "HOST:PORT"}
//   token          id of the token that it joined with
//
// Joining and renewing take the same steps, in an order that survives a crash after any of them:
//   1. key.pem.new is written (or is there from an attempt that got no answer), and a signing
//      request for it goes out. Until the answer is there, the old pair stays in use.
//   2. When joining: ca.pem and identity.json are written.
//   3. cert.pem is replaced. From here on the new certificate is the one; its key is key.pem.new.
//   4. When joining: token is written. Killed before, the client seems to have joined otherwise.
//   5. key.pem.new is renamed to key.pem. load() does this when a crash came between 3 and 5.
// So the folder holds an identity exactly when cert.pem is there, and always the key that fits it.
//
// One thread at a time. Errors name the file: not_found (no identity), corrupt (files that can't be
// read or don't fit each other), and those of Files.
#pragma once

#include "shared/base/io/file.hpp"
#include "shared/identity/x509.hpp"
#include "shared/net/server_address.hpp"

namespace fl {

class ClientIdentity {
 public:
  /// Whether load() would look for an identity here, valid or not.
  [[nodiscard]] static bool is_present(Files& files, const std::filesystem::path& folder);
  static Result<ClientIdentity> load(Files& files, const std::filesystem::path& folder);

  /// Step 1, for joining and renewing: the signing request (PEM) for the next key. Calling it again
  /// before finish_* gives a request for the same key.
  [[nodiscard]] static Result<std::string> request_certificate(Files& files,
                                                               const std::filesystem::path& folder);
  /// Steps 2 to 5, in a folder that holds no identity yet, or one that this takes the place of. The
  /// certificates (PEM) are checked
  /// first: `ca` must have signed `certificate`, and that must be for the requested key; otherwise
  /// unauthenticated, and nothing is changed.
  static Result<ClientIdentity> finish_joining(Files& files, const std::filesystem::path& folder,
                                               const ServerAddress& server,
                                               std::string_view token_id,
                                               std::string_view certificate, std::string_view ca);
  /// Steps 3 and 5. The certificate must be of the same authority and name, for the requested key;
  /// otherwise unauthenticated, and nothing is changed. TLS contexts made before keep the old pair.
  [[nodiscard]] Result<void> finish_renewing(Files& files, std::string_view certificate);

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const ServerAddress& server() const { return server_; }
  /// Of the token that it joined with; empty where that is not known.
  [[nodiscard]] const std::string& token_id() const { return token_id_; }
  [[nodiscard]] const std::string& key_pem() const { return key_pem_; }
  [[nodiscard]] const std::string& certificate_pem() const { return certificate_pem_; }
  [[nodiscard]] const std::string& ca_pem() const { return ca_pem_; }

  /// Unix seconds. Past two thirds of the certificate's life it is time to renew; past its end the
  /// client has to join anew.
  [[nodiscard]] bool renew_due(double now) const { return now >= life_.renew_at(); }
  [[nodiscard]] bool is_expired(double now) const { return now > life_.not_after; }
  [[nodiscard]] const Validity& life() const { return life_; }

 private:
  ClientIdentity() = default;

  std::filesystem::path folder_;
  ServerAddress server_;
  std::string token_id_;
  std::string name_;
  std::string key_pem_;
  std::string certificate_pem_;
  std::string ca_pem_;
  Validity life_;
};

}  // namespace fl
