// SPDX-License-Identifier: Apache-2.0
#include "server/sums/combination.hpp"

#include "shared/base/error.hpp"

#include <algorithm>

namespace fl::server {

namespace {

/// Row i of the result has the weights of the vectors in mixed vector i. A center stays itself.
SquareMatrix mixing_of(const SquareMatrix& distances, std::size_t n, std::size_t f) {
  SquareMatrix mixing(distances.size());
  const Neighbours near = nearest_neighbours(distances, n, f);
  for (std::size_t i = 0; i < n; ++i) {
    for (const std::size_t j : near[i]) mixing(i, j) = 1 / static_cast<double>(n - f);
  }
  for (std::size_t i = n; i < mixing.size(); ++i) mixing(i, i) = 1;
  return mixing;
}

/// The squared distances between mixed vectors: vector i is the sum of the original vectors with
/// the weights in row i of `weights`, which sum to 1. |sum of w_a x_a - sum of v_a x_a|^2 follows
/// from the distances between the x.
SquareMatrix distances_of_mixed(const SquareMatrix& distances, const SquareMatrix& weights) {
  const std::size_t n = distances.size();
  SquareMatrix half(n);
  SquareMatrix both(n);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j)
      for (std::size_t a = 0; a < n; ++a) half(i, j) += weights(i, a) * distances(a, j);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j)
      for (std::size_t a = 0; a < n; ++a) both(i, j) += half(i, a) * weights(j, a);
  SquareMatrix mixed(n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      if (i != j) mixed(i, j) = std::max(0.0, both(i, j) - (both(i, i) + both(j, j)) / 2);
    }
  }
  return mixed;
}

}  // namespace

Neighbours nearest_neighbours(const SquareMatrix& distances, std::size_t n, std::size_t f) {
  Neighbours near;
  for (std::size_t i = 0; i < n; ++i) {
    std::vector<double> from;
    for (std::size_t j = 0; j < n; ++j) from.push_back(distances(i, j));
    near.push_back(indices_of_smallest(from, n - f));
  }
  return near;
}

std::vector<double> combination(const AggregateRule& rule, const SquareMatrix& distances) {
  FL_ASSERT(rule.weighing != nullptr);
  if (!rule.mixes) return rule.weighing->weights(distances);
  const std::size_t n = distances.size() - (rule.has_center() ? 1 : 0);
  const SquareMatrix mixing = mixing_of(distances, n, rule.mix_f_of(n));
  const std::vector<double> of_mixed =
      rule.weighing->weights(distances_of_mixed(distances, mixing));
  std::vector<double> weights(of_mixed.size());
  for (std::size_t i = 0; i < weights.size(); ++i)
    for (std::size_t j = 0; j < weights.size(); ++j) weights[j] += of_mixed[i] * mixing(i, j);
  return weights;
}

}  // namespace fl::server
