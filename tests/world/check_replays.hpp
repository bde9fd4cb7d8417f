// SPDX-License-Identifier: Apache-2.0
// Replays the rounds of a world whose updates were kept.
#pragma once

#include "server/round/replay.hpp"
#include "tests/world/check.hpp"

namespace fl::test {

using namespace fl::server;

inline const std::filesystem::path kept_folder = "/state/kept-updates";

/// Makes a round again, from what is on the server's disk.
[[nodiscard]] Result<ReplayedRound> replay_of(World& world, History& history, Round round);

/// Checks that the updates of as many rounds as --keep-updates says are there, and that each of
/// these rounds gives the recorded model again.
[[nodiscard]] Result<void> check_replays(World& world, History& history);

}  // namespace fl::test
