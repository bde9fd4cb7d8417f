// SPDX-License-Identifier: Apache-2.0
// The sub-commands about who is let in: join tokens, revocations and the certificate authority.
// They work beside a running server or without one, except rotate-ca, which needs the state for
// itself.
#pragma once

#include "server/app/command.hpp"

namespace fl::server {

[[nodiscard]] Command enroll_command();
[[nodiscard]] Command revoke_command();
[[nodiscard]] Command pardon_command();
[[nodiscard]] Command rotate_command();

}  // namespace fl::server
