// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/optimizer.hpp"

#include "kernels/kernels.hpp"

#include <ATen/Parallel.h>

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace fl {

namespace {

constexpr std::int64_t elements_at_once = 1 << 15;  // A thread's least part of a step.

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

/// Bias corrections, of `steps` steps of Adam.
double bias(double beta, std::uint64_t steps) {
  return 1 - std::pow(beta, static_cast<double>(steps));
}

StepArgs args_of(const TrainSettings& settings, std::uint64_t steps) {
  using Kind = LocalOptimizer::Kind;
  const LocalOptimizer& o = settings.optimizer;
  const auto decay = static_cast<float>(settings.weight_decay);
  StepArgs args{.lr = static_cast<float>(settings.lr),
                .decay = decay,
                .proximal = static_cast<float>(settings.proximal_mu),
                .beta1 = static_cast<float>(settings.momentum)};
  if (o.is_sgd()) {
    if (settings.momentum > 0)
      args.rule = o.kind == Kind::nesterov ? StepArgs::Rule::nesterov : StepArgs::Rule::momentum;
    return args;
  }
  args.rule = StepArgs::Rule::adam;
  args.lr = static_cast<float>(settings.lr / bias(o.beta1, steps));
  args.beta1 = static_cast<float>(o.beta1);
  args.beta2 = static_cast<float>(o.beta2);
  args.own1 = static_cast<float>(1 - o.beta1);
  args.own2 = static_cast<float>(1 - o.beta2);
  args.root_bias2 = static_cast<float>(std::sqrt(bias(o.beta2, steps)));
  args.epsilon = static_cast<float>(o.epsilon);
  if (o.kind == Kind::adamw) {
    args.decay = 0;
    args.shrink = static_cast<float>(1 - settings.lr * settings.weight_decay);
  }
  return args;
}

float* data_of(torch::Tensor& values) {
  return values.defined() ? values.mutable_data_ptr<float>() : nullptr;
}

/// Memory of the host from which a GPU can read without a copy in between.
torch::Tensor pinned_like(const torch::Tensor& values) {
  return torch::empty(values.sizes(), torch::dtype(torch::kFloat32).pinned_memory(true));
}

}  // namespace

Optimizer::Optimizer(const TrainSettings& settings, Vectors vectors, const Moments& kept)
    : settings_(settings), vectors_(std::move(vectors)) {
  const bool has_moments = !settings_.optimizer.is_sgd();
  if (settings_.momentum > 0 || has_moments) first_ = moment_from(kept.first, vectors_.start);
  if (has_moments) second_ = moment_from(kept.second, vectors_.start);
  steps_ = kept.steps;
}

Moments Optimizer::moments() const { return {kept_from(first_), kept_from(second_), steps_}; }

void Optimizer::step() {
  const torch::NoGradGuard no_grad;
  if (!settings_.optimizer.is_sgd()) ++steps_;
  if (vectors_.start.is_cpu())
    step_on_host();
  else
    step_on_device();
}

void Optimizer::step_on_host() {
  torch::Tensor weights = vectors_.weights;
  torch::Tensor gradient = vectors_.gradient;
  const bool is_away = !weights.is_cpu();
  if (is_away) {
    if (!weights_there_.defined()) {
      weights_there_ = pinned_like(weights);
      gradient_there_ = pinned_like(gradient);
    }
    weights = weights_there_.copy_(weights);
    gradient = gradient_there_.copy_(gradient);
  }
  const StepArgs args = args_of(settings_, steps_);
  const bool has_correction = vectors_.correction.defined();
  const StepVectors all{
      .weights = data_of(weights),
      .gradient = data_of(gradient),
      .start = vectors_.start.const_data_ptr<float>(),
      .correction = has_correction ? vectors_.correction.const_data_ptr<float>() : nullptr,
      .first = data_of(first_),
      .second = data_of(second_)};
  at::parallel_for(0, weights.size(0), elements_at_once, [&](std::int64_t begin, std::int64_t end) {
    kernels().optimizer_step(all.from(static_cast<std::size_t>(begin)),
                             static_cast<std::size_t>(end - begin), args);
  });
  if (!is_away) return;
  vectors_.weights.copy_(weights);
  vectors_.gradient.zero_();
}

void Optimizer::step_on_device() {
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
  first_.mul_(o.beta1).add_(g, 1 - o.beta1);
  second_.mul_(o.beta2).addcmul_(g, g, 1 - o.beta2);
  const double bias1 = bias(o.beta1, steps_);
  const double bias2 = bias(o.beta2, steps_);
  const torch::Tensor scale = second_.sqrt().div_(std::sqrt(bias2)).add_(o.epsilon);
  vectors_.weights.addcdiv_(first_, scale, -settings_.lr / bias1);
}

}  // namespace fl
