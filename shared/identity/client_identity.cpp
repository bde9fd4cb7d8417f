// SPDX-License-Identifier: Apache-2.0
#include "shared/identity/client_identity.hpp"

#include "shared/base/json.hpp"

#include <algorithm>

namespace fl {
namespace {

using Path = std::filesystem::path;

Path key_path(const Path& folder) { return folder / "key.pem"; }
Path new_key_path(const Path& folder) { return folder / "key.pem.new"; }
Path certificate_path(const Path& folder) { return folder / "cert.pem"; }
Path ca_path(const Path& folder) { return folder / "ca.pem"; }
Path token_path(const Path& folder) { return folder / "token"; }
Path json_path(const Path& folder) { return folder / "identity.json"; }

constexpr std::uint64_t file_bytes_max = 64 << 10;  // Each file has about 1 KiB.

/// Reads a file and returns parse(text); copies the text to `text` if that is not null. Errors name
/// the file.
template <class Parse>
auto read_and_parse(Files& files, const Path& path, Parse parse, std::string* text = nullptr)
    -> decltype(parse(std::string_view())) {
  FL_TRY(std::string bytes, files.read_all(path, file_bytes_max));
  auto parsed = parse(std::string_view(bytes));
  if (!parsed) return parsed.error().at(path.string());
  if (text) *text = std::move(bytes);
  return parsed;
}

Result<ServerAddress> parse_server_file(std::string_view text) {
  const auto json = parse_json(text);
  if (!json.is_object() || !json.contains("server") || !json["server"].is_string())
    return Error(Errc::corrupt,
                 "not a JSON object with a string \"server\": remove the folder and join again");
  return parse_server_address(json["server"].get<std::string>());
}

/// Returns the key (PEM) of `certificate`. Does step 5 if a crash prevented it, so the key is in
/// key.pem afterwards.
Result<std::string> settle_key(Files& files, const Path& folder, const X509& certificate) {
  std::string pem;
  if (files.exists(key_path(folder))) {
    FL_TRY(const KeyPtr key, read_and_parse(files, key_path(folder), parse_key, &pem));
    if (fits(certificate, *key)) return pem;
  }
  if (files.exists(new_key_path(folder))) {
    FL_TRY(const KeyPtr key, read_and_parse(files, new_key_path(folder), parse_key, &pem));
    if (fits(certificate, *key)) {
      FL_CHECK(files.rename(new_key_path(folder), key_path(folder)));
      FL_CHECK(files.sync_folder(folder));
      return pem;
    }
  }
  return Error(Errc::corrupt, key_path(folder).string() + " is missing or is not the key of " +
                                  certificate_path(folder).string() +
                                  ": remove the folder and join again with a new token");
}

/// Whether one of these authorities has signed the certificate.
bool is_signed_by_one(X509& certificate, std::string_view ca_pem) {
  const auto authorities = parse_certificates(ca_pem);
  return authorities && std::ranges::any_of(*authorities, [&](const CertificatePtr& authority) {
           return is_signed_by(certificate, *authority);
         });
}

/// Checks the server's answer to a signing request before any file is replaced.
Result<void> check_answer(Files& files, const Path& folder, std::string_view certificate_pem,
                          std::string_view ca_pem) {
  FL_TRY(const CertificatePtr certificate, parse_certificate(certificate_pem));
  FL_TRY(const KeyPtr key, read_and_parse(files, new_key_path(folder), parse_key));
  if (!fits(*certificate, *key))
    return Error(Errc::unauthenticated,
                 "the server sent a certificate for another key than this client's");
  if (!is_signed_by_one(*certificate, ca_pem))
    return Error(Errc::unauthenticated,
                 "the server sent a certificate that its authority has not signed");
  if (!common_name(*certificate))
    return Error(Errc::unauthenticated, "the server sent a certificate without a client name");
  return {};
}

}  // namespace

bool ClientIdentity::is_present(Files& files, const Path& folder) {
  return files.exists(certificate_path(folder));
}

Result<ClientIdentity> ClientIdentity::load(Files& files, const Path& folder) {
  ClientIdentity identity;
  identity.folder_ = folder;
  FL_TRY(const CertificatePtr certificate,
         read_and_parse(files, certificate_path(folder), parse_certificate,
                        &identity.certificate_pem_));
  FL_TRY([[maybe_unused]] const auto authorities,
         read_and_parse(files, ca_path(folder), parse_certificates, &identity.ca_pem_));
  FL_TRY(identity.server_, read_and_parse(files, json_path(folder), parse_server_file));
  if (files.exists(token_path(folder))) {
    FL_TRY(identity.token_id_, files.read_all(token_path(folder), file_bytes_max));
  }
  FL_TRY(identity.key_pem_, settle_key(files, folder, *certificate));
  if (!is_signed_by_one(*certificate, identity.ca_pem_))
    return Error(Errc::corrupt, certificate_path(folder).string() + " is not signed by " +
                                    ca_path(folder).string());
  const auto name = common_name(*certificate);
  if (!name)
    return Error(Errc::corrupt, certificate_path(folder).string() + " has no client name in it");
  identity.name_ = *name;
  FL_TRY(identity.life_, validity(*certificate));
  return identity;
}

Result<std::string> ClientIdentity::request_certificate(Files& files, const Path& folder) {
  FL_CHECK(files.make_folder(folder));
  KeyPtr key;
  if (files.exists(new_key_path(folder))) {
    FL_TRY(key, read_and_parse(files, new_key_path(folder), parse_key));
  } else {
    FL_TRY(key, make_key());
    FL_TRY(const std::string pem, to_pem(*key));
    FL_CHECK(files.write_atomically(new_key_path(folder), bytes_of(pem)));
  }
  FL_TRY(const RequestPtr request, make_request(*key));
  return to_pem(*request);
}

Result<ClientIdentity> ClientIdentity::finish_joining(Files& files, const Path& folder,
                                                      const ServerAddress& server,
                                                      std::string_view token_id,
                                                      std::string_view certificate,
                                                      std::string_view ca) {
  FL_CHECK(check_answer(files, folder, certificate, ca));
  const std::string json = json_text(nlohmann::json{{"server", to_string(server)}}, 2) + "\n";
  FL_CHECK(files.write_atomically(ca_path(folder), bytes_of(ca)));
  FL_CHECK(files.write_atomically(json_path(folder), bytes_of(json)));
  FL_CHECK(files.write_atomically(certificate_path(folder), bytes_of(certificate)));
  FL_CHECK(files.write_atomically(token_path(folder), bytes_of(token_id)));
  return load(files, folder);
}

Result<void> ClientIdentity::finish_renewing(Files& files, std::string_view certificate,
                                             std::string_view ca) {
  FL_CHECK(check_answer(files, folder_, certificate, ca.empty() ? ca_pem_ : ca));
  FL_TRY(const CertificatePtr renewed, parse_certificate(certificate));
  if (common_name(*renewed) != name_)
    return Error(Errc::unauthenticated,
                 "the server sent a renewed certificate for another client than " + name_);
  // While the authority is replaced, `ca` has the old one too: so after a crash before the next
  // step the file still has the authority that signed the old certificate.
  if (!ca.empty() && ca != ca_pem_)
    FL_CHECK(files.write_atomically(ca_path(folder_), bytes_of(ca)));
  FL_CHECK(files.write_atomically(certificate_path(folder_), bytes_of(certificate)));
  FL_TRY(*this, load(files, folder_));
  return {};
}

}  // namespace fl
