// SPDX-License-Identifier: Apache-2.0
// The step of "lanes": the distance between two levels of a tensor, in 2 bytes. All clients of a
// round use the same, which the server's Offer says, so that their levels can be added up. And the
// tally of values, by which the next step is chosen.
//
// A step is a mantissa of 5 bits times a power of two. So a decoded value has at most 24 bits
// (lanes.cpp): it is exact in fp32, and so are the sums of such values (accumulator.hpp).
#pragma once

#include "shared/base/error.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fl::codec {

class LaneStep {
 public:
  static constexpr int mantissas = 16;  // From 16 to 31: a step is up to 2^(1/16) times the next.
  static constexpr int exponent_min = -100;
  static constexpr int exponent_max = 12;

  /// No step: nobody knows the tensor's values yet.
  constexpr LaneStep() = default;
  /// The smallest step that is at least `value`, which is above 0; at the ends of the range the
  /// step that is nearest.
  [[nodiscard]] static LaneStep at_least(double value);
  /// The step with these two bytes. Errors: corrupt.
  [[nodiscard]] static Result<LaneStep> parse(std::uint16_t code);

  [[nodiscard]] constexpr bool is_set() const { return code_ != 0; }
  [[nodiscard]] constexpr std::uint16_t code() const { return code_; }
  // The step is mantissa() * 2^exponent(). Requires: is_set().
  [[nodiscard]] constexpr int mantissa() const { return mantissas + code_ % mantissas; }
  [[nodiscard]] constexpr int exponent() const { return code_ / mantissas - bias; }
  [[nodiscard]] double value() const;

  constexpr auto operator<=>(const LaneStep&) const = default;  // By size; no step is the least.

 private:
  static constexpr int bias = 128;
  constexpr explicit LaneStep(int mantissa, int exponent)
      : code_(static_cast<std::uint16_t>((exponent + bias) * mantissas + mantissa - mantissas)) {}

  std::uint16_t code_ = 0;
};

inline constexpr int lane_bits_min = 2;
inline constexpr int lane_bits_max = 16;

/// S: levels of so many bits are from -S to S.
[[nodiscard]] constexpr std::int32_t lane_levels(int bits) { return (1 << (bits - 1)) - 1; }
/// The magnitude of the last level, in root mean squares of the values. Few levels are better spent
/// on the many small values; where there are many, what is clipped counts more.
[[nodiscard]] constexpr double lane_range(int bits) { return std::min(5.5, 1.5 + 0.5 * bits); }
/// The step for values with this root mean square, which is above 0.
[[nodiscard]] LaneStep fitting_step(int bits, double rms);

/// In a masked round the squares of up to 128 clients are added up in words of 64 bits.
inline constexpr std::uint64_t lane_squares_max = (std::uint64_t{1} << 57) - 1;

/// The figures by which the next step is chosen. All are integers, so that tallies of
/// several clients add up in any order to the same.
struct LaneTally {
  std::uint64_t values = 0;  // How many.
  /// The sum of the squares of the values, each at most S + 1/2 steps, in units of the square of
  /// 2^(B - 10) steps; of values without a step, in units of 2^-48.
  std::uint64_t squares = 0;
  std::uint64_t clipped = 0;  // Values of more than S + 1/2 steps.
  std::uint64_t large = 0;    // Values of more than S / 2 steps.

  LaneTally& operator+=(const LaneTally& other);
  /// What one client's tally of a tensor counts for: not more than lane_squares_max.
  [[nodiscard]] LaneTally of_client() const;
  bool operator==(const LaneTally&) const = default;
};

/// The unit of LaneTally::squares.
[[nodiscard]] double lane_squares_unit(int bits, LaneStep step);

/// One for each tensor of a layout.
using LaneSteps = std::vector<LaneStep>;

/// Steps as bytes, two for each, as in an Offer and a version's row of the history.
[[nodiscard]] std::string to_bytes(const LaneSteps& steps);
/// Reads what to_bytes() wrote; the bytes need not be trusted. No bytes: no tensor has a step.
/// Errors: corrupt, also if there are not `tensors` steps.
[[nodiscard]] Result<LaneSteps> parse_lane_steps(std::string_view bytes, std::size_t tensors);

}  // namespace fl::codec
