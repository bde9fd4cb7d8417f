// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/optimizer.hpp"

#include <cmath>
#include <utility>
#include <vector>

namespace fl {

namespace {

/// A moment that is kept, on the device; zeros if there is none.
torch::Tensor moment_from(const std::vector<float>& kept, const torch::Tensor& like) {
  if (kept.size() != static_cast<std::size_t>(like.numel())) return torch::zeros_like(like);
  return torch::tensor(at::ArrayRef<float>(kept)).to(like.device());
}

std::vector<float> kept_from(const torch::Tensor& moment) {
  if (!moment.defined()) return {};
  const torch::Tensor values = moment.cpu().contiguous();
  return {values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel()};
}

}  // namespace

Optimizer::Optimizer(const TrainSettings& settings, Vectors vectors, const Moments& kept)
    : settings_(settings), vectors_(std::move(vectors)) {
  const bool has_moments = !settings_.optimizer.is_sgd();
  if (settings_.momentum > 0 || has_moments) first_ = moment_from(kept.first, vectors_.weights);
  if (has_moments) second_ = moment_from(kept.second, vectors_.weights);
  steps_ = kept.steps;
}

Moments Optimizer::moments() const { return {kept_from(first_), kept_from(second_), steps_}; }

void Optimizer::step() {
  const torch::NoGradGuard no_grad;
  torch::Tensor& w = vectors_.weights;
  torch::Tensor& g = vectors_.gradient;
  const bool is_decoupled = settings_.optimizer.kind == LocalOptimizer::Kind::adamw;
  if (settings_.weight_decay > 0) {
    if (is_decoupled) {
      w.mul_(1 - settings_.lr * settings_.weight_decay);
    } else {
      g.add_(w, settings_.weight_decay);
    }
  }
  if (settings_.proximal_mu > 0) g.add_(w - vectors_.start, settings_.proximal_mu);
  if (vectors_.correction.defined()) g.add_(vectors_.correction);
  if (settings_.optimizer.is_sgd()) {
    step_by_momentum();
  } else {
    step_by_moments();
  }
  g.zero_();
}

void Optimizer::step_by_momentum() {
  torch::Tensor& w = vectors_.weights;
  const torch::Tensor& g = vectors_.gradient;
  if (settings_.momentum == 0) {
    w.add_(g, -settings_.lr);
    return;
  }
  first_.mul_(settings_.momentum).add_(g);
  if (settings_.optimizer.kind == LocalOptimizer::Kind::nesterov) {
    w.add_(g, -settings_.lr).add_(first_, -settings_.lr * settings_.momentum);
  } else {
    w.add_(first_, -settings_.lr);
  }
}

/// With bias correction, as in the papers and in PyTorch.
void Optimizer::step_by_moments() {
  const LocalOptimizer& o = settings_.optimizer;
  const torch::Tensor& g = vectors_.gradient;
  ++steps_;
  first_.mul_(o.beta1).add_(g, 1 - o.beta1);
  second_.mul_(o.beta2).addcmul_(g, g, 1 - o.beta2);
  const double bias1 = 1 - std::pow(o.beta1, static_cast<double>(steps_));
  const double bias2 = 1 - std::pow(o.beta2, static_cast<double>(steps_));
  const torch::Tensor scale = second_.sqrt().div_(std::sqrt(bias2)).add_(o.epsilon);
  vectors_.weights.addcdiv_(first_, scale, -settings_.lr / bias1);
}

}  // namespace fl
