// SPDX-License-Identifier: Apache-2.0
// Checks what the history says of the versions' quality against what the members' toy problems say.
#pragma once

#include "tests/world/check.hpp"

#include <span>
#include <vector>

namespace fl::test {

/// Recomputes each member's evaluations from the versions' models (by version), the values that the
/// evaluators together make, the run's main metric, and whether the run had a reason to end when it
/// did.
[[nodiscard]] Result<void> check_evaluations(World& world, History& history,
                                             const std::vector<std::span<const float>>& models);

}  // namespace fl::test
