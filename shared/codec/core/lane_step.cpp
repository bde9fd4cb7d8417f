// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/core/lane_step.hpp"

#include "shared/base/io/bytes.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace fl::codec {

namespace {

std::uint64_t saturating_sum(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  return a > most - b ? most : a + b;
}

}  // namespace

LaneStep LaneStep::at_least(double value) {
  FL_ASSERT(value > 0);
  const LaneStep least(mantissas, exponent_min);
  const LaneStep most(2 * mantissas - 1, exponent_max);
  if (value <= least.value()) return least;
  if (value >= most.value()) return most;
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);  // From 1/2 to below 1.
  const int mantissa = static_cast<int>(std::ceil(fraction * (2 * mantissas)));
  exponent -= 5;  // 2 * mantissas is 2^5.
  if (mantissa == 2 * mantissas) return LaneStep(mantissas, exponent + 1);
  return LaneStep(mantissa, exponent);
}

Result<LaneStep> LaneStep::parse(std::uint16_t code) {
  LaneStep step;
  step.code_ = code;
  const bool is_in_range = step.exponent() >= exponent_min && step.exponent() <= exponent_max;
  if (code != 0 && !is_in_range)
    return Error(Errc::corrupt, fmt::format("{} is not the code of a step", code));
  return step;
}

double LaneStep::value() const {
  FL_ASSERT(is_set());
  return std::ldexp(mantissa(), exponent());
}

LaneStep fitting_step(int bits, double rms) {
  return LaneStep::at_least(lane_range(bits) * rms / lane_levels(bits));
}

LaneTally& LaneTally::operator+=(const LaneTally& other) {
  values = saturating_sum(values, other.values);
  squares = saturating_sum(squares, other.squares);
  clipped = saturating_sum(clipped, other.clipped);
  large = saturating_sum(large, other.large);
  return *this;
}

LaneTally LaneTally::of_client() const {
  LaneTally tally = *this;
  tally.squares = std::min(tally.squares, lane_squares_max);
  return tally;
}

double lane_squares_unit(int bits, LaneStep step) {
  return step.is_set() ? std::ldexp(step.value() * step.value(), 2 * (bits - 10)) : 0x1p-48;
}

std::string to_bytes(const LaneSteps& steps) {
  std::string bytes(steps.size() * sizeof(std::uint16_t), '\0');
  const MutableBytes out = std::as_writable_bytes(std::span(bytes));
  for (std::size_t t = 0; t < steps.size(); ++t)
    store(out, t * sizeof(std::uint16_t), steps[t].code());
  return bytes;
}

Result<LaneSteps> parse_lane_steps(std::string_view bytes, std::size_t tensors) {
  if (bytes.empty()) return LaneSteps(tensors);
  if (bytes.size() != tensors * sizeof(std::uint16_t)) {
    return Error(Errc::corrupt,
                 fmt::format("the steps have {} bytes, and {} tensors need {}", bytes.size(),
                             tensors, tensors * sizeof(std::uint16_t)));
  }
  LaneSteps steps;
  for (std::size_t t = 0; t < tensors; ++t) {
    FL_TRY(const LaneStep step,
           LaneStep::parse(load<std::uint16_t>(bytes_of(bytes), t * sizeof(std::uint16_t))));
    steps.push_back(step);
  }
  return steps;
}

}  // namespace fl::codec
