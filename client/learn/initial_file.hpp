// SPDX-License-Identifier: Apache-2.0
// The server's file of initial weights, as a trainer of the user's makes them.
#pragma once

#include "client/learn/trainer.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <filesystem>

namespace fl {

/// Writes the trainer's initial weights to a safetensors file, at once or not at all. Errors:
/// invalid_input, if the trainer can't make any; those of the disk.
[[nodiscard]] Result<void> write_initial_weights(const Trainer& trainer, std::uint64_t seed,
                                                 const std::filesystem::path& path);

}  // namespace fl
