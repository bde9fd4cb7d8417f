// How a codec's number goes from one to another over the first rounds of a run, while updates are
// still large and every one of them matters: in equal ratios, as the density does in "Deep gradient
// compression", Lin 2018, section 3.3. Pure; any thread.
#pragma once

#include <cstdint>

namespace fl {

/// In round 1 it is `first`, from round over + 1 on it is `last`, and in between first * (last /
/// first)^((round - 1) / over), to four digits. Both are above 0, `round` and `over` from 1 on. The
/// same on every machine.
[[nodiscard]] double warm_up(double first, double last, std::uint32_t round, std::uint32_t over);
/// To whole numbers.
[[nodiscard]] std::int32_t warm_up(std::int32_t first, std::int32_t last, std::uint32_t round,
                                   std::uint32_t over);

}  // namespace fl
