// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/core/warm_up.hpp"

#include "shared/base/error.hpp"
#include "shared/codec/core/power.hpp"

#include <array>
#include <charconv>
#include <cmath>

namespace fl::codec {

namespace {

double stage(double first, double last, std::uint32_t round, std::uint32_t over) {
  FL_ASSERT(first > 0 && last > 0 && round >= 1 && over >= 1);
  if (round > over) return last;
  if (round == 1) return first;
  // first^(1 - f) * last^f instead of first * (last / first)^f, because last / first can overflow.
  return fractional_power(first, over - (round - 1), over) *
         fractional_power(last, round - 1, over);
}

}  // namespace

double warm_up(double first, double last, std::uint32_t round, std::uint32_t over) {
  const double exact = stage(first, last, round, over);
  if (exact == first || exact == last) return exact;
  // Rounds through text, so that a spec shows a short number which is exactly the value.
  std::array<char, 32> text;
  const auto [end, failed] = std::to_chars(text.data(), text.data() + text.size(), exact,
                                           std::chars_format::scientific, 3);
  double rounded = 0;
  std::from_chars(text.data(), end, rounded);
  FL_ASSERT(failed == std::errc{} && rounded > 0);
  return rounded;
}

std::int32_t warm_up(std::int32_t first, std::int32_t last, std::uint32_t round,
                     std::uint32_t over) {
  return static_cast<std::int32_t>(std::floor(stage(first, last, round, over) + 0.5));
}

}  // namespace fl::codec
