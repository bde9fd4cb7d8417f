// SPDX-License-Identifier: Apache-2.0
#include "server/round/loss_weight.hpp"

#include "shared/base/median.hpp"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace fl::server {

namespace {

double predictions_max(std::span<const LossWeight> losses, double cap) {
  std::vector<double> weights;
  for (const LossWeight& one : losses) {
    const double weight = one.predictions.value_or(one.examples);
    if (weight > 0) weights.push_back(weight);
  }
  if (cap == 0 || weights.empty()) return std::numeric_limits<double>::infinity();
  return cap * lower_median(std::move(weights));
}

}  // namespace

double mean_loss(std::span<const LossWeight> losses, double cap) {
  const double most = predictions_max(losses, cap);
  double sum = 0;
  double weights = 0;
  for (const LossWeight& one : losses) {
    const double weight = one.predictions ? std::min(*one.predictions, most) : one.examples;
    sum += one.loss * weight;
    weights += weight;
  }
  return sum / weights;
}

}  // namespace fl::server
