// SPDX-License-Identifier: Apache-2.0
// WriteValues: where a vector that is made piece by piece goes.
#pragma once

#include "shared/base/error.hpp"

#include <cstdint>
#include <functional>
#include <span>

namespace fl {

/// Takes a stretch of a vector: the values from element `first` on. An error ends the work that
/// makes them. The caller says in which order the stretches come, and on how many threads.
using WriteValues = std::function<Result<void>(std::uint64_t first, std::span<const float> values)>;

}  // namespace fl
