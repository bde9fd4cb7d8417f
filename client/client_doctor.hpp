// SPDX-License-Identifier: Apache-2.0
// `fl-client doctor`: whether this machine can take part: the way to the server, the certificate,
// the clock, the disk, the data, the trainer. It changes nothing, uses up no token, and may run
// beside a client in the same state folder.
#pragma once

#include "client/command_line.hpp"
#include "client/trainer_kinds.hpp"
#include "shared/base/doctor.hpp"

namespace fl::client {

/// `token`: the join token that was given, or "". `kind`: what trains.
[[nodiscard]] DoctorLines diagnose_client(const ClientOptions& options, const std::string& token,
                                          const TrainerKind& kind);

/// Checks whether the user's program starts and says hello.
void check_trainer_program(const ClientOptions& options, DoctorLines& lines);
/// Checks whether a built-in model has data and a device.
void check_builtin_trainer(const ClientOptions& options, DoctorLines& lines);

}  // namespace fl::client
