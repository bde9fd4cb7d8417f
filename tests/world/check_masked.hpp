// SPDX-License-Identifier: Apache-2.0
// The invariants of a masked world: nobody can read its updates, so its model is compared with that
// of a world in the clear instead (masked_scenarios.cpp).
#pragma once

#include "tests/world/check.hpp"

namespace fl::test {

/// Every task is decided, a quorum counts in each round, what was acknowledged counts, and neither
/// the server nor the clients keep anything of the attempts.
[[nodiscard]] Result<void> check_masked(World& world, History& history);

}  // namespace fl::test
