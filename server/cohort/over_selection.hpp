// SPDX-License-Identifier: Apache-2.0
// How many clients a round asks when --over-select is 0: more than it needs, by as many as have
// been slow.
//
// A client is slow if it brought no update when it was last asked, or took more than slow_factor
// times the median of those that brought one. A client is not judged if it was never asked, or if
// its round closed before that time. If a part p of the judged clients is slow, a round asks
// target / (1 - p) clients: then likely as many as it needs are not slow. It asks at most
// over_select_max times its target.
#pragma once

#include "server/cohort/sampler.hpp"

#include <cstdint>
#include <span>

namespace fl::server {

inline constexpr double slow_factor = 2;
inline constexpr double over_select_max = 2;

/// The number of clients to ask: from `target` to over_select_max times as many.
[[nodiscard]] std::size_t adapted_cohort(std::uint32_t target,
                                         std::span<const Candidate> candidates);

}  // namespace fl::server
