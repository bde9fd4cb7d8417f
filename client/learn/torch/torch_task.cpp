// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/torch_task.hpp"

#include "client/learn/torch/divided_layers.hpp"
#include "shared/base/limits.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fl {

namespace {

constexpr double none = std::numeric_limits<double>::quiet_NaN();

double sum_of(const torch::Tensor& values) {
  return values.to(torch::kFloat64).sum().item<double>();
}

}  // namespace

torch::Tensor deviation_of(const torch::Tensor& variance) {
  return variance.clamp_min(std::numeric_limits<float>::min()).sqrt();
}

torch::Tensor TargetScale::scaled(const torch::Tensor& targets) const {
  return mean.defined() ? ((targets - mean) / deviation()).to(torch::kFloat32) : targets;
}

torch::Tensor loss_of(const ModelSpec& spec, const TargetScale& scale, const torch::Tensor& outputs,
                      const torch::Tensor& targets, at::Reduction::Reduction reduction,
                      TensorGroup* group) {
  switch (spec.task) {
    case ModelSpec::Task::language:
      if (group != nullptr)
        return divided_cross_entropy(*group, outputs.flatten(0, 1), targets.flatten(), reduction);
      return torch::cross_entropy_loss(outputs.flatten(0, 1), targets.flatten(), {}, reduction,
                                       no_target);
    case ModelSpec::Task::regression: {
      const torch::Tensor wanted = scale.scaled(targets);
      const torch::Tensor all = spec.loss == ModelSpec::Loss::mse
                                    ? torch::mse_loss(outputs, wanted, reduction)
                                    : torch::l1_loss(outputs, wanted, reduction);
      return reduction == at::Reduction::Sum ? all / spec.outputs : all;
    }
    default: return torch::cross_entropy_loss(outputs, targets, {}, reduction);
  }
}

void Measurement::add(const torch::Tensor& outputs, const torch::Tensor& targets) {
  loss_ +=
      loss_of(spec_, scale_, outputs, targets, at::Reduction::Sum, groups_.tensor).item<double>();
  // Each example once, whoever has parts of it.
  if (groups_.context == nullptr || groups_.context->rank() == 0) examples_ += targets.size(0);
  if (spec_.task == ModelSpec::Task::regression) return add_values(outputs, targets);
  if (spec_.task != ModelSpec::Task::classification) return;
  right_ += outputs.argmax(1).eq(targets).sum().item<std::int64_t>();
  if (spec_.outputs != 2) return;
  const torch::Tensor score = (outputs.select(1, 1) - outputs.select(1, 0)).cpu();
  const torch::Tensor classes = targets.cpu();
  for (std::int64_t i = 0; i < score.size(0); ++i)
    scores_.emplace_back(score.const_data_ptr<float>()[i],
                         classes.const_data_ptr<std::int64_t>()[i] == 1);
}

void Measurement::add_values(const torch::Tensor& outputs, const torch::Tensor& targets) {
  const torch::Tensor wanted = scale_.scaled(targets);
  const torch::Tensor error = outputs - wanted;
  absolute_ += sum_of(scale_.mean.defined() ? error.abs() * scale_.deviation() : error.abs());
  squares_ += sum_of(error.square());
  const torch::Tensor sums = wanted.to(torch::kFloat64).sum(0);
  values_ = values_.defined() ? values_ + sums : sums;
  value_squares_ += sum_of(wanted.square());
}

void Measurement::join(const Sum& sum, std::int64_t rank, std::int64_t ranks) {
  const auto fp64 = torch::dtype(torch::kFloat64);
  torch::Tensor sums = torch::tensor({loss_, static_cast<double>(right_), absolute_, squares_,
                                      value_squares_, static_cast<double>(examples_)},
                                     fp64);
  sum(sums);
  const auto* const all = sums.const_data_ptr<double>();
  loss_ = all[0];
  right_ = static_cast<std::int64_t>(all[1]);
  absolute_ = all[2];
  squares_ = all[3];
  value_squares_ = all[4];
  examples_ = static_cast<std::int64_t>(all[5]);
  if (spec_.task == ModelSpec::Task::regression) {
    if (!values_.defined()) values_ = torch::zeros({spec_.outputs}, fp64);
    values_ = values_.cpu();
    sum(values_);
  }
  if (spec_.task != ModelSpec::Task::classification || spec_.outputs != 2) return;
  // The scores of all, a stretch for each rank.
  torch::Tensor counts = torch::zeros({ranks}, fp64);
  counts[rank] = static_cast<double>(scores_.size());
  sum(counts);
  const auto mine = static_cast<std::int64_t>(scores_.size());
  const std::int64_t before =
      static_cast<std::int64_t>(counts.narrow(0, 0, rank).sum().item<double>());
  torch::Tensor joined = torch::zeros({examples_, 2}, fp64);
  auto* const row = joined.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < mine; ++i) {
    const auto& [score, is_one] = scores_[static_cast<std::size_t>(i)];
    row[2 * (before + i)] = static_cast<double>(score);
    row[2 * (before + i) + 1] = is_one ? 1 : 0;
  }
  sum(joined);
  scores_.clear();
  for (std::int64_t i = 0; i < examples_; ++i)
    scores_.emplace_back(static_cast<float>(row[2 * i]), row[2 * i + 1] > 0);
}

EvalReport Measurement::report(const Examples& examples) const {
  EvalReport report;
  report.examples = static_cast<std::uint64_t>(examples_);
  report.loss = loss_ / static_cast<double>(examples.predictions());
  report.predictions = examples.told_predictions();
  if (spec_.task == ModelSpec::Task::language) {
    report.metrics = {{.name = "perplexity",
                       .value = std::exp(report.loss),
                       .weight = static_cast<double>(examples.predictions())}};
  } else if (spec_.task == ModelSpec::Task::regression) {
    report.metrics = value_metrics();
  } else {
    report.metrics = {{.name = "accuracy",
                       .value = static_cast<double>(right_) / static_cast<double>(examples_)}};
    if (spec_.outputs == 2) report.metrics.push_back(auroc_of(scores_));
  }
  return report;
}

/// R2 against the mean of all clients' training targets where the model knows it. Then the weighted
/// mean over clients, by their sums of squares, is the R2 of all their data. Else against the mean
/// of these targets.
std::vector<MetricValue> Measurement::value_metrics() const {
  const double count = static_cast<double>(examples_ * spec_.outputs);
  const double about_mean =
      value_squares_ - sum_of(values_.square()) / static_cast<double>(examples_);
  const double all = scale_.mean.defined() ? value_squares_ : about_mean;
  return {{.name = "mae", .value = absolute_ / count},
          {.name = "r2",
           .value = all > 0 ? 1 - squares_ / all : none,
           .weight = std::clamp(all, 0.0, limits::metric_weight_max)}};
}

MetricValue auroc_of(std::vector<std::pair<float, bool>> scores) {
  std::ranges::sort(scores);
  double below = 0;  // Examples of class 0 with a lower score.
  double pairs = 0;
  double won = 0;
  for (auto first = scores.begin(); first != scores.end();) {
    const auto last = std::find_if(first, scores.end(),
                                   [first](const auto& one) { return one.first != first->first; });
    const auto ones =
        static_cast<double>(std::count_if(first, last, [](const auto& one) { return one.second; }));
    const double zeros = static_cast<double>(last - first) - ones;
    won += ones * (below + zeros / 2);
    below += zeros;
    first = last;
  }
  pairs = below * (static_cast<double>(scores.size()) - below);
  return {.name = "auroc",
          .value = pairs > 0 ? won / pairs : none,
          .weight = std::min(pairs, limits::metric_weight_max)};
}

}  // namespace fl
