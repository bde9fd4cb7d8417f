// SPDX-License-Identifier: Apache-2.0
// The client's side of joining: one HTTPS request to the server that the join token names.
#pragma once

#include "shared/base/async/asio.hpp"
#include "shared/identity/client_identity.hpp"
#include "shared/identity/token.hpp"
#include "shared/net/proxy.hpp"

namespace fl::client {

/// Makes a key in `folder`, requests a certificate for it from the server, and stores the identity
/// in `folder`, where it replaces an existing one. `name` is the name that the client wants, or ""
/// for the token's. The token's secret is sent only after the server has proved that the token is
/// its own. `rules`: the way to the server. Runs on the caller's executor and reads and writes a
/// few small files there. `files` must outlive the coroutine.
///
/// Errors. deadline: it took longer than limits::handshake_max. unavailable: the server can't be
/// reached or does not answer. unauthenticated: the server is not the one of the token, or it
/// rejected the request. conflict: a proxy, or another machine between the two, does not let us
/// through. protocol: an invalid answer. Errors of Files are passed on. After an error the token
/// may be used up; the same client may still repeat the request, with the same key.
[[nodiscard]] Awaitable<Result<ClientIdentity>> enroll_over_https(JoinToken token, std::string name,
                                                                  std::filesystem::path folder,
                                                                  Files& files,
                                                                  ProxyRules rules = ProxyRules());

}  // namespace fl::client
