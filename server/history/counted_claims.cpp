// SPDX-License-Identifier: Apache-2.0
#include "server/history/counted_claims.hpp"

#include "shared/base/median.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fl::server {

namespace {

constexpr double no_limit = std::numeric_limits<double>::infinity();

double weight_of(const Claim& claim) { return claim.weight > 0 ? claim.weight : claim.examples; }

/// The most that an example counts with.
double weight_limit(std::span<const Claim> claims) {
  if (claims.size() < 2) return no_limit;
  std::vector<double> weights;
  weights.reserve(claims.size());
  for (const Claim& claim : claims) weights.push_back(weight_of(claim) / claim.examples);
  const double usual = weights.size() == 2 ? std::ranges::min(weights) : upper_median(weights);
  return std::max(claimed_weight_always, claimed_weight_ratio * usual);
}

double examples_limit(std::span<const Claim> claims) {
  if (claims.size() < claims_to_judge_min) return no_limit;
  std::vector<double> examples;
  examples.reserve(claims.size());
  for (const Claim& claim : claims) examples.push_back(claim.examples);
  return claimed_examples_ratio * upper_median(std::move(examples));
}

}  // namespace

double figure_limit(std::span<const double> figures) {
  std::vector<double> magnitudes;
  magnitudes.reserve(figures.size());
  for (const double figure : figures)
    if (std::isfinite(figure)) magnitudes.push_back(std::fabs(figure));
  if (magnitudes.size() < claims_to_judge_min) return claimed_figure_max;
  const double usual = claimed_figure_ratio * upper_median(std::move(magnitudes));
  return std::clamp(usual, claimed_figure_always, claimed_figure_max);
}

double counted_figure(double figure, double limit) { return std::clamp(figure, -limit, limit); }

std::vector<Weighted> counted_claims(std::span<const Claim> claims) {
  std::vector<Claim> finite;
  std::vector<double> values;
  for (const Claim& claim : claims) {
    if (!std::isfinite(claim.value)) continue;
    finite.push_back(claim);
    values.push_back(claim.value);
  }
  const double value_max = figure_limit(values);
  const double weight_max = weight_limit(finite);
  const double examples_max = examples_limit(finite);
  std::vector<Weighted> counted;
  counted.reserve(finite.size());
  for (const Claim& claim : finite) {
    const double weight = std::min(weight_of(claim), weight_max * claim.examples);
    const double part = std::min(claim.examples, examples_max) / claim.examples;
    counted.push_back({counted_figure(claim.value, value_max), weight * part});
  }
  return counted;
}

}  // namespace fl::server
