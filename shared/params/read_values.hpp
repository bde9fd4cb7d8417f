// SPDX-License-Identifier: Apache-2.0
// ReadValues: where the values of a vector come from that is read piece by piece.
#pragma once

#include "shared/base/error.hpp"

#include <cstdint>
#include <functional>
#include <span>

namespace fl {

/// Copies the values from element `first` on into `out`. The caller may read in any order, and
/// again; from the front to the end is fastest. One thread at a time.
using ReadValues = std::function<Result<void>(std::uint64_t first, std::span<float> out)>;

}  // namespace fl
