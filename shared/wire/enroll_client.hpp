// Joining, from the client's side: one HTTPS request to the server that a join token names.
#pragma once

#include "shared/base/async/asio.hpp"
#include "shared/identity/client_identity.hpp"
#include "shared/identity/token.hpp"

namespace fl {

/// Makes a key in FOLDER, has the server certify it, and stores the identity there, in the place of
/// one that is there. `name` is what the client wants to be called, or "" for the name that the
/// token is bound to. The secret is sent
/// only after the server has proved that it is the token's. Runs on the caller's executor; touches
/// the disk there, for a few small files. `files` outlives it.
///
/// Takes at most limits::handshake_max, else `deadline`. unavailable: no such server, or none that
/// answers. unauthenticated: another server than the token's, or the server's own refusal.
/// protocol: an answer that makes no sense. When an answer got lost, or the disk failed (the errors
/// of Files), the token may be used up, and the next attempt needs another.
[[nodiscard]] Awaitable<Result<ClientIdentity>> enroll_over_https(JoinToken token, std::string name,
                                                                  std::filesystem::path folder,
                                                                  Files& files);

}  // namespace fl
