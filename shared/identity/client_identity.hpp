// SPDX-License-Identifier: Apache-2.0
// The identity of a client, in CLIENT_STATE/identity: its key, its certificate, the authority that
// it trusts, and the server's address. The key is made on the client and never leaves the machine.
//
//   key.pem        the private key (mode 0600)
//   key.pem.new    the key of the next certificate, while one is requested
//   cert.pem       the certificate, issued by the server's authority
//   ca.pem         the authority's certificate, or those of two while the authority is changed
//   identity.json  {"server": "HOST:PORT"}
//   token          the id of the join token that the client joined with
//
// Joining and renewing take the same steps. Their order survives a crash after any step:
//   1. Write key.pem.new (or keep the one of an attempt that got no answer), and send a signing
//      request for it. Until the answer arrives, the old key and certificate stay in use.
//   2. When joining: write ca.pem and identity.json.
//   3. Replace cert.pem. From now on the new certificate is valid; its key is key.pem.new.
//   4. When joining: write token. After a crash before this step the client does not know which
//      token it used; then the same token looks like a new one.
//   5. Rename key.pem.new to key.pem. load() does this if a crash came between steps 3 and 5.
// So the folder holds an identity exactly when cert.pem exists, and then it also holds its key.
//
// One thread at a time. Errors name the file: not_found (no identity), corrupt (unreadable files,
// or files that don't belong together), and those of Files.
#pragma once

#include "shared/base/io/file.hpp"
#include "shared/identity/x509.hpp"
#include "shared/net/server_address.hpp"

namespace fl {

class ClientIdentity {
 public:
  /// Whether the folder holds an identity, valid or not.
  [[nodiscard]] static bool is_present(Files& files, const std::filesystem::path& folder);
  static Result<ClientIdentity> load(Files& files, const std::filesystem::path& folder);

  /// Step 1 of joining and renewing: returns the signing request (PEM) for the next key. A second
  /// call before finish_* returns a request for the same key.
  [[nodiscard]] static Result<std::string> request_certificate(Files& files,
                                                               const std::filesystem::path& folder);
  /// Steps 2 to 5 of joining. Replaces an identity that the folder already holds. `certificate` and
  /// `ca` are PEM. They are checked first: `ca` must have signed `certificate`, which must be for
  /// the requested key; otherwise the error is unauthenticated and nothing is changed.
  static Result<ClientIdentity> finish_joining(Files& files, const std::filesystem::path& folder,
                                               const ServerAddress& server,
                                               std::string_view token_id,
                                               std::string_view certificate, std::string_view ca);
  /// Steps 3 and 5 of renewing. Before them `ca` replaces the trusted authorities, unless it is
  /// empty. The certificate must come from one of these, with the same name, for the requested key;
  /// otherwise the error is unauthenticated and nothing is changed. TLS contexts made before keep
  /// the old key and certificate.
  [[nodiscard]] Result<void> finish_renewing(Files& files, std::string_view certificate,
                                             std::string_view ca = "");

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const ServerAddress& server() const { return server_; }
  /// The id of the join token that the client joined with; empty when unknown.
  [[nodiscard]] const std::string& token_id() const { return token_id_; }
  [[nodiscard]] const std::string& key_pem() const { return key_pem_; }
  [[nodiscard]] const std::string& certificate_pem() const { return certificate_pem_; }
  [[nodiscard]] const std::string& ca_pem() const { return ca_pem_; }

  /// `now` is in Unix seconds. The client renews its certificate after two thirds of its life.
  [[nodiscard]] bool renew_due(double now) const { return now >= life_.renew_at(); }
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
