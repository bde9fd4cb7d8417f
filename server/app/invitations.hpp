// SPDX-License-Identifier: Apache-2.0
// The server's authority, and the join tokens by which clients get certificates from it. Blocking
// (the store).
#pragma once

#include "server/app/options.hpp"
#include "server/history/members.hpp"
#include "shared/base/error.hpp"
#include "shared/identity/authority.hpp"
#include "shared/net/server_address.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace fl::server {

/// STATE/identity.
[[nodiscard]] std::filesystem::path identity_folder(const SharedOptions& options);

/// The passphrase of the authority's key; "": it is not encrypted.
[[nodiscard]] Result<std::string> ca_passphrase(const SharedOptions& options);

/// The server's certificate authority. It is created if there is none, unless clients have
/// certificates of an earlier authority: those would be worthless (`corrupt`).
[[nodiscard]] Result<Authority> open_authority(Members& members, const SharedOptions& options);

/// The client that a join token is for, and what it may do.
struct Invitation {
  std::string name;
  double expires_s = 3600;
  std::string role = {};  // "trainer" or "evaluator"; "": the role that the name has, or trainer.
  std::optional<std::uint64_t> examples_max =
      {};  // None: the limit that the name has. 0: no limit.
};

/// A new join token, recorded in the store.
[[nodiscard]] Result<std::string> make_join_token(Members& members, const Sha256& fingerprint,
                                                  const ServerAddress& address,
                                                  const Invitation& invitation);

struct Invited {
  std::string token;
  bool replaces = false;  // A member that has joined by that name will be displaced.
};
/// A join token with the address and the authority of the server in options.state.
[[nodiscard]] Result<Invited> invite(Members& members, const SharedOptions& options,
                                     const Invitation& invitation);

}  // namespace fl::server
