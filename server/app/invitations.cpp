// SPDX-License-Identifier: Apache-2.0
#include "server/app/invitations.hpp"

#include "shared/base/async/clock.hpp"
#include "shared/base/io/file.hpp"
#include "shared/base/io/secret_file.hpp"
#include "shared/base/json.hpp"
#include "shared/identity/token.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl::server {

namespace {

/// The address for clients that the running (or last) server has written.
Result<ServerAddress> advertised_address(const SharedOptions& options) {
  const auto path = std::filesystem::path(options.state) / "address.json";
  FL_TRY(const auto text, posix_files().read_all(path));
  const auto address = parse_json(text);
  if (!address.is_object() || !address.contains("advertise") || !address["advertise"].is_string()) {
    return Error(Errc::corrupt,
                 fmt::format("{} can't be read: start fl-server again", path.string()));
  }
  return parse_server_address(address["advertise"].get<std::string>());
}

}  // namespace

std::filesystem::path identity_folder(const SharedOptions& options) {
  return std::filesystem::path(options.state) / "identity";
}

Result<std::string> ca_passphrase(const SharedOptions& options) {
  if (options.ca_passphrase_file.empty()) return std::string();
  auto passphrase = read_secret_file(posix_files(), options.ca_passphrase_file);
  if (!passphrase) return passphrase.error().at("--ca-passphrase-file");
  return passphrase;
}

Result<Authority> open_authority(Members& members, const SharedOptions& options) {
  const auto folder = identity_folder(options);
  if (!posix_files().exists(folder / "ca.crt")) {
    FL_TRY(const auto clients, members.all());
    const auto known = std::ranges::count_if(
        clients, [](const ClientRecord& client) { return !client.certificate_serial.empty(); });
    if (known > 0)
      return Error(Errc::corrupt,
                   fmt::format("{} is missing, and {} clients have certificates from it: restore "
                               "the folder from a copy, or begin in another --state, where all "
                               "clients join again",
                               (folder / "ca.crt").string(), known));
  }
  FL_TRY(const std::string passphrase, ca_passphrase(options));
  return Authority::open_or_create(posix_files(), folder, Clock::unix_seconds(), passphrase);
}

Result<std::string> make_join_token(Members& members, const Sha256& fingerprint,
                                    const ServerAddress& address, const Invitation& invitation) {
  const std::string& name = invitation.name;
  FL_CHECK(check_client_name(name));
  FL_TRY(const auto known, members.find(name));
  if (known && known->revoked_at != 0)
    return Error(Errc::conflict, fmt::format("'{}' was revoked: choose another name", name));
  FL_TRY(const auto token, make_token(address, fingerprint));
  TokenRecord record;
  record.id = token.id_hex();
  record.name = name;
  record.secret_hash = token.secret_hash();
  record.expires_at = Clock::unix_seconds() + invitation.expires_s;
  record.evaluator =
      invitation.role.empty() ? known && known->evaluator : invitation.role == "evaluator";
  record.examples_max = invitation.examples_max.value_or(known ? known->examples_max : 0);
  FL_CHECK(members.add_token(record));
  return to_string(token);
}

Result<Invited> invite(Members& members, const SharedOptions& options,
                       const Invitation& invitation) {
  FL_TRY(const auto address, advertised_address(options));
  FL_TRY(const auto fingerprint, authority_fingerprint(posix_files(), identity_folder(options)));
  FL_TRY(const auto known, members.find(invitation.name));
  FL_TRY(std::string token, make_join_token(members, fingerprint, address, invitation));
  return Invited{std::move(token), known && !known->certificate_serial.empty()};
}

}  // namespace fl::server
