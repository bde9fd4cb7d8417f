// SPDX-License-Identifier: Apache-2.0
// geomedian: the geometric median, by Weiszfeld's iteration (Pillutla 2022, "Robust aggregation for
// federated learning").
#include "server/sums/rules/rule_table.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace fl::server {

MakeWeighingRule make_geomedian;

namespace {

/// The distance of each vector from their sum with these weights.
std::vector<double> distances_from(const std::vector<double>& weights,
                                   const SquareMatrix& distances) {
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
/// An update that is more than a million times as far away is left out: it would take all digits.
std::vector<double> geometric_median(const SquareMatrix& distances) {
  constexpr int iterations_max = 1000;
  constexpr double settled = 1e-12;
  constexpr double far = 1e6;
  const std::size_t n = distances.size();
  const std::vector<double> from_medoid = distances_from_medoid(distances);
  std::vector<double> sorted = from_medoid;
  std::ranges::sort(sorted);
  const double usual = sorted[n / 2];
  std::vector<double> weights(n);
  for (std::size_t i = 0; i < n; ++i) weights[i] = from_medoid[i] <= far * usual ? 1 : 0;
  const double count = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= count;
  if (usual == 0) return weights;
  for (int iteration = 0; iteration < iterations_max; ++iteration) {
    std::vector<double> next = distances_from(weights, distances);
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

class GeometricMedian final : public WeighingRule {
 public:
  std::uint32_t least_updates() const override { return 3; }
  std::vector<double> weights(const SquareMatrix& distances) const override {
    return geometric_median(distances);
  }
};

}  // namespace

Result<std::shared_ptr<const WeighingRule>> make_geomedian(const RuleArguments& arguments) {
  FL_CHECK(arguments.none());
  return std::make_shared<const GeometricMedian>();
}

}  // namespace fl::server
