// SPDX-License-Identifier: Apache-2.0
// The weights of a rule that weighs whole updates, and nearest-neighbour mixing before a rule. Both
// follow from the updates' distances alone, so nothing here has to see the updates.
#pragma once

#include "server/sums/aggregate_rule.hpp"
#include "server/sums/distances.hpp"

#include <cstddef>
#include <vector>

namespace fl::server {

/// The updates that nearest-neighbour mixing takes: near[i] has the indices of the n - f vectors
/// that are nearest to vector i, itself included, in ascending order. Of equally near ones it takes
/// the first.
using Neighbours = std::vector<std::vector<std::size_t>>;
[[nodiscard]] Neighbours nearest_neighbours(const SquareMatrix& distances, std::size_t n,
                                            std::size_t f);

/// The weights of the n updates, followed by the center's weight, if the rule has a center. They
/// sum to 1. `distances`: between the updates, followed by the center. The rule is a weighing one,
/// and may have mixing.
[[nodiscard]] std::vector<double> combination(const AggregateRule& rule,
                                              const SquareMatrix& distances);

}  // namespace fl::server
