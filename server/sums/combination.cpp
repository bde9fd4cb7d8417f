// SPDX-License-Identifier: Apache-2.0
#include "server/sums/combination.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace fl {

namespace {

using Weights = std::vector<double>;

/// The indices of the `count` smallest values, in ascending order. Of equal ones the first.
std::vector<std::size_t> smallest(const std::vector<double>& values, std::size_t count) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::size_t index) { return values[index]; });
  order.resize(count);
  std::ranges::sort(order);
  return order;
}

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

Weights best_by_krum(const SquareMatrix& distances, std::size_t f, std::size_t best) {
  const std::size_t n = distances.size();
  std::vector<double> scores(n);
  for (std::size_t i = 0; i < n; ++i) {
    std::vector<double> others;
    for (std::size_t j = 0; j < n; ++j) {
      if (j != i) others.push_back(distances(i, j));
    }
    std::ranges::sort(others);
    const std::size_t counted = std::min(others.size(), n - f - 1);
    for (std::size_t k = 0; k < counted; ++k) scores[i] += others[k];
  }
  Weights weights(n);
  const std::size_t chosen = std::min(best, n);
  for (const std::size_t i : smallest(scores, chosen)) weights[i] = 1 / static_cast<double>(chosen);
  return weights;
}

/// The distance of each vector from their sum with these weights.
std::vector<double> distances_from(const Weights& weights, const SquareMatrix& distances) {
  const std::size_t n = distances.size();
  std::vector<double> from(n);
  double spread = 0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) from[i] += weights[j] * distances(i, j);
    spread += weights[i] * from[i];
  }
  for (double& squared : from) squared = std::sqrt(std::max(0.0, squared - spread / 2));
  return from;
}

/// The distances of all vectors from the one that has the least sum of distances.
std::vector<double> distances_from_medoid(const SquareMatrix& distances) {
  const std::size_t n = distances.size();
  std::vector<double> nearest;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < n; ++i) {
    std::vector<double> from(n);
    for (std::size_t j = 0; j < n; ++j) from[j] = std::sqrt(distances(i, j));
    const double sum = std::accumulate(from.begin(), from.end(), 0.0);
    if (sum >= least) continue;
    least = sum;
    nearest = std::move(from);
  }
  return nearest;
}

/// Weiszfeld's iteration, from the mean on. Small and far are measured by the median distance from
/// the medoid. No distance counts as less than a millionth of it (the smoothing of Pillutla 2022).
/// What is more than a million times as far is left out: it would take all digits.
Weights geometric_median(const SquareMatrix& distances) {
  constexpr int iterations_max = 1000;
  constexpr double settled = 1e-12;
  constexpr double far = 1e6;
  const std::size_t n = distances.size();
  const std::vector<double> from_medoid = distances_from_medoid(distances);
  std::vector<double> sorted = from_medoid;
  std::ranges::sort(sorted);
  const double usual = sorted[n / 2];
  Weights weights(n);
  for (std::size_t i = 0; i < n; ++i) weights[i] = from_medoid[i] <= far * usual ? 1 : 0;
  const double count = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= count;
  if (usual == 0) return weights;
  for (int iteration = 0; iteration < iterations_max; ++iteration) {
    Weights next = distances_from(weights, distances);
    for (std::size_t i = 0; i < n; ++i)
      next[i] = weights[i] == 0 ? 0 : 1 / std::max(next[i], usual / far);
    const double sum = std::accumulate(next.begin(), next.end(), 0.0);
    double change = 0;
    for (std::size_t i = 0; i < n; ++i) {
      next[i] /= sum;
      change = std::max(change, std::fabs(next[i] - weights[i]));
    }
    weights = std::move(next);
    if (change < settled) break;
  }
  return weights;
}

/// The center is the last vector.
Weights clip_around_center(const SquareMatrix& distances, double clip) {
  const std::size_t n = distances.size() - 1;
  Weights weights(n + 1);
  weights[n] = 1;
  for (std::size_t i = 0; i < n; ++i) {
    const double distance = std::sqrt(distances(i, n));
    const double kept = distance > clip ? clip / distance : 1;
    weights[i] = kept / static_cast<double>(n);
    weights[n] -= weights[i];
  }
  return weights;
}

Weights combination_of_mixed(const AggregateRule& rule, const SquareMatrix& distances) {
  const std::size_t n = distances.size();
  switch (rule.kind) {
    case AggregateRule::Kind::krum: return best_by_krum(distances, rule.krum_f_of(n), rule.best);
    case AggregateRule::Kind::geomedian: return geometric_median(distances);
    case AggregateRule::Kind::centered_clip: return clip_around_center(distances, rule.clip);
    default: return Weights(n, 1 / static_cast<double>(n));
  }
}

}  // namespace

Neighbours nearest_neighbours(const SquareMatrix& distances, std::size_t n, std::size_t f) {
  Neighbours near;
  for (std::size_t i = 0; i < n; ++i) {
    std::vector<double> from;
    for (std::size_t j = 0; j < n; ++j) from.push_back(distances(i, j));
    near.push_back(smallest(from, n - f));
  }
  return near;
}

std::vector<double> combination(const AggregateRule& rule, const SquareMatrix& distances) {
  if (!rule.mixes) return combination_of_mixed(rule, distances);
  const std::size_t n = distances.size() - (rule.has_center() ? 1 : 0);
  const SquareMatrix mixing = mixing_of(distances, n, rule.mix_f_of(n));
  const Weights of_mixed = combination_of_mixed(rule, distances_of_mixed(distances, mixing));
  Weights weights(of_mixed.size());
  for (std::size_t i = 0; i < weights.size(); ++i)
    for (std::size_t j = 0; j < weights.size(); ++j) weights[j] += of_mixed[i] * mixing(i, j);
  return weights;
}

}  // namespace fl
