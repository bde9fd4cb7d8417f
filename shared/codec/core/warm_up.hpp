// SPDX-License-Identifier: Apache-2.0
// Warm-up of a codec's number (a fraction, bits, levels or a rank) over the first rounds of a run,
// when updates are still large. The number changes by the same ratio from round to round, as the
// density does in "Deep gradient compression", Lin 2018, section 3.3. Pure; any thread.
#pragma once

#include <cstdint>

namespace fl::codec {

/// The number in round `round`: `first` in round 1, `last` from round over + 1 on, and in between
/// first * (last / first)^((round - 1) / over), rounded to four digits. Requires: first > 0,
/// last > 0, round >= 1, over >= 1. The result is the same on every machine.
[[nodiscard]] double warm_up(double first, double last, std::uint32_t round, std::uint32_t over);
/// warm_up(), rounded to the nearest whole number.
[[nodiscard]] std::int32_t warm_up(std::int32_t first, std::int32_t last, std::uint32_t round,
                                   std::uint32_t over);

}  // namespace fl::codec
