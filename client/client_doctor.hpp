// SPDX-License-Identifier: Apache-2.0
// `fl-client doctor`: whether this machine can take part: the way to the server, the certificate,
// the clock, the disk, the data, the trainer. It changes nothing, uses up no token, and may run
// beside a client in the same state folder.
#pragma once

#include "client/command_line.hpp"
#include "shared/base/doctor.hpp"

namespace fl {

/// `token`: the join token that was given, or "". `has_own_trainer`: the program is a user's, and
/// trains itself: of its data and devices we know nothing.
[[nodiscard]] DoctorLines diagnose_client(const ClientOptions& options, const std::string& token,
                                          bool has_own_trainer);

}  // namespace fl
