// How many more clients than needed a round asks when --over-select is 0: as many as have been
// slow.
//
// Slow is a client that brought no update when it was last asked, or took more than slow_factor
// times the median of those that did. One whose round closed sooner than that is not judged, nor is
// one that was never asked. With a part p of slow ones among those that are judged a round asks
// target / (1 - p) clients, so that as many as it needs are likely not slow, but at most
// over_select_max times its target.
#pragma once

#include "server/cohort/sampler.hpp"

#include <cstdint>
#include <span>

namespace fl {

inline constexpr double slow_factor = 2;
inline constexpr double over_select_max = 2;

/// From `target` to over_select_max times as many.
[[nodiscard]] std::size_t adapted_cohort(std::uint32_t target,
                                         std::span<const Candidate> candidates);

}  // namespace fl
