// SPDX-License-Identifier: Apache-2.0
// The rule that makes one update of a round's updates (--aggregate). The mean weighs updates by
// their examples, and one member can move it anywhere. The other rules are robust: each member
// counts the same, whatever it claims, and a few can move the result only a little. Each has a file
// in server/sums/rules/ and a row of the table there.
//
//   nnm[:f]+RULE     First each update is replaced by the mean of its n - f nearest, itself
//                    included (Allouah 2023, "Fixing by mixing"). Without f: that of RULE, or else
//                    the most that may be malicious, (n - 1) / 2.
//
// Distances are those of the model's parameters: statistics (layout.hpp), whose scale is another,
// take part in the result only. Pure; any thread.
#pragma once

#include "server/sums/rules/robust_rule.hpp"
#include "shared/base/error.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

namespace fl::server {

/// A robust rule has one of the two pointers; the mean has none.
struct AggregateRule {
  std::shared_ptr<const CoordinateRule> by_coordinate;
  std::shared_ptr<const WeighingRule> weighing;
  bool mixes = false;                // The rule begins with nnm+.
  std::optional<std::uint32_t> mix;  // The f of nnm+.

  [[nodiscard]] bool is_mean() const { return !by_coordinate && !weighing; }
  /// Whether each coordinate is made from the updates' values of this coordinate alone.
  [[nodiscard]] bool is_by_coordinate() const { return by_coordinate != nullptr; }
  [[nodiscard]] bool needs_distances() const { return mixes || weighing; }
  /// Whether the rule needs the result of the round before.
  [[nodiscard]] bool has_center() const { return weighing && weighing->has_center(); }

  /// The least number of updates with which the rule means something.
  [[nodiscard]] std::uint32_t least_updates() const;
  /// The f of nnm+ for n updates. It also accepts fewer than least_updates(). Not for the mean.
  [[nodiscard]] std::size_t mix_f_of(std::size_t n) const;
};

/// Returns invalid_input, with what would be right, for anything that is not a rule.
[[nodiscard]] Result<AggregateRule> parse_aggregate(std::string_view spec);

}  // namespace fl::server
