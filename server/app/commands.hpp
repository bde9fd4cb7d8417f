// The sub-commands of fl-server that read or change the state beside a running server.
#pragma once

#include "server/app/command_line.hpp"
#include "shared/identity/authority.hpp"
#include "shared/identity/token.hpp"

namespace fl {

/// Each prints to standard output and returns an error for main() to print.
[[nodiscard]] Result<void> queue_another_run(const ServerOptions& options);
[[nodiscard]] Result<void> print_history(const ServerOptions& options);
[[nodiscard]] Result<void> print_clients(const ServerOptions& options);
[[nodiscard]] Result<void> print_codecs();
[[nodiscard]] Result<void> print_strategies();
[[nodiscard]] Result<void> enroll_client(const ServerOptions& options);
[[nodiscard]] Result<void> revoke_client(const ServerOptions& options);

/// The server's authority, made where there is none. Refuses to make another beside the
/// certificates of an earlier one, which nobody could come in with any more.
[[nodiscard]] Result<Authority> open_authority(Store& store, const std::string& state);

/// A new join token for `name`, recorded in the store.
[[nodiscard]] Result<std::string> make_join_token(Store& store, const Sha256& fingerprint,
                                                  const ServerAddress& address,
                                                  const std::string& name, double expires_s);

}  // namespace fl
