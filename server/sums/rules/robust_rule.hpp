// SPDX-License-Identifier: Apache-2.0
// A robust rule makes one update of a round's updates, each of which counts the same, whatever its
// client claims. A rule is of one of two kinds, by coordinate or weighing, and each
// rule has a file of its own in this folder. Constants; any thread.
#pragma once

#include "server/sums/distances.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fl::server {

class RobustRule {
 public:
  virtual ~RobustRule() = default;
  /// The least number of updates with which the rule means something. The other functions also
  /// accept fewer, from 1 on.
  [[nodiscard]] virtual std::uint32_t least_updates() const = 0;
  /// The number of n updates that the rule takes for malicious: the f of nnm+ where none is given.
  [[nodiscard]] virtual std::size_t suspects_of(std::size_t n) const { return (n - 1) / 2; }
};

/// A rule that makes each coordinate from the updates' values of this coordinate alone: the mean of
/// what is left when the smallest and the largest are dropped.
class CoordinateRule : public RobustRule {
 public:
  /// The number of values that are dropped at each end of n: at least one is left.
  [[nodiscard]] virtual std::size_t dropped_of(std::size_t n) const = 0;
  [[nodiscard]] std::size_t suspects_of(std::size_t n) const override { return dropped_of(n); }
};

/// A rule whose result is a weighted sum of the updates, with the same weights for all elements.
/// They follow from the updates' distances alone, so the rule does not see the updates.
class WeighingRule : public RobustRule {
 public:
  /// The weights of the updates, followed by the center's weight, if the rule has a center. They
  /// sum to 1. `distances`: squared, between the updates, followed by the center.
  [[nodiscard]] virtual std::vector<double> weights(const SquareMatrix& distances) const = 0;
  /// Whether the rule needs the result of the round before, as one more vector.
  [[nodiscard]] virtual bool has_center() const { return false; }
};

}  // namespace fl::server
