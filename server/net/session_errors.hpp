// SPDX-License-Identifier: Apache-2.0
// The meaning of an error for the session that it ends: the client's Bye, whether the client is at
// fault, and the level in the log. Pure functions; any thread.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/log.hpp"
#include "shared/wire/message.hpp"

namespace fl::server {

/// The cause in the Bye that ends the session.
[[nodiscard]] wire::Bye::Cause cause_of(const Error& error);

/// Whether the client has broken the protocol or a limit.
[[nodiscard]] bool is_fault(const Error& error);

/// Makes an error of sending (a damaged model of ours, a header that is too large) one that is not
/// laid to the client.
[[nodiscard]] Result<void> as_own_fault(Result<void> sent);

/// The log level for a client that is turned away.
[[nodiscard]] LogLevel level_of(const Error& error);

}  // namespace fl::server
