// SPDX-License-Identifier: Apache-2.0
// The sub-commands of fl-server. They read or change the state folder, beside a running server or
// without one.
#pragma once

#include "server/app/command_line.hpp"
#include "shared/identity/authority.hpp"
#include "shared/identity/token.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace fl {

/// All sub-commands, in the order in which --help shows them.
[[nodiscard]] std::span<const Command> server_commands();

/// The history in the state folder. Errors: not_found, with what to do, if there is none; conflict,
/// if its schema is older, as only the server's start migrates it.
[[nodiscard]] Result<std::unique_ptr<Store>> open_store(const ServerOptions& options,
                                                        bool read_only);

/// The server's certificate authority. It is created if there is none, unless clients have
/// certificates of an earlier authority: those would be worthless (`corrupt`).
[[nodiscard]] Result<Authority> open_authority(Store& store, const ServerOptions& options);

/// The client that a join token is for, and what it may do.
struct Invitation {
  std::string name;
  double expires_s = 3600;
  std::string role = {};  // "trainer" or "evaluator"; "": the role that the name has, or trainer.
  std::optional<std::uint64_t> examples_max =
      {};  // None: the limit that the name has. 0: no limit.
};

/// A new join token, recorded in the store.
[[nodiscard]] Result<std::string> make_join_token(Store& store, const Sha256& fingerprint,
                                                  const ServerAddress& address,
                                                  const Invitation& invitation);

}  // namespace fl
