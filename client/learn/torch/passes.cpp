// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/passes.hpp"

#include "client/learn/torch/divided_attention.hpp"
#include "client/learn/torch/guarded.hpp"
#include "client/learn/torch/layer.hpp"

#include <fmt/format.h>

#include <utility>

namespace fl {

Passes::Passes(ModelSpec spec, Module module, const PassGroups& groups, NumberFormat low)
    : spec_(std::move(spec)),
      module_(std::move(module)),
      units_(module_, spec_),
      groups_(groups),
      low_(low),
      routing_(routing_of(*module_)) {}

Measurement Passes::measurement() const { return {spec_, parameters_->target(), groups_}; }

void Passes::set_training(bool is_training) {
  if (module_->is_training() != is_training) module_->train(is_training);
}

torch::Tensor Passes::forward(const torch::Tensor& inputs, bool is_training) {
  if (is_training && inputs.size(0) == 1 && norms_one_value(spec_)) {
    throw UnfitBatch(fmt::format(
        "the BatchNorms of this model can't train on a batch of one example, as its images are of "
        "{}x{} pixels: choose another --batch-size, so that none is left alone, or larger images",
        spec_.input[1], spec_.input[2]));
  }
  set_training(is_training);
  return units_.forward(inputs);
}

double Passes::take(const TrainingPasses& passes) {
  if (groups_.pipeline != nullptr) return take_staged(passes);
  double sum = 0;
  for (std::int64_t number = 0; number < passes.count && !passes.stop.stop_requested(); ++number)
    sum += take_one(passes, number);
  return sum;
}

void Passes::take(const EvaluationPasses& passes) {
  if (groups_.pipeline != nullptr) return take_staged(passes);
  for (std::int64_t number = 0; number < passes.count && !passes.stop.stop_requested(); ++number) {
    if (passes.together != nullptr) passes.together->advance();
    const EvaluationPasses::Evaluated evaluated = passes.at(number);
    const OwnBatch batch = begin(evaluated);
    const torch::Tensor outputs = forward(batch.inputs, false);
    if (evaluated.counts) passes.take(outputs, batch.targets);
  }
}

/// What `compute` makes of some inputs in the number format of these passes, in fp32.
template <class Compute>
torch::Tensor Passes::in_format_of(const TrainingPasses& passes, const torch::Tensor& inputs,
                                   const Compute& compute) const {
  std::optional<MixedPass> mixed;
  if (passes.is_low) mixed.emplace(inputs.device(), low_);
  return compute().to(torch::kFloat32);
}

double Passes::take_one(const TrainingPasses& passes, std::int64_t number) {
  StepSync* const together = passes.together;
  const bool is_reduced = passes.reduces && number + 1 == passes.count;
  if (together != nullptr) together->before_forward(parameters_->trained(), is_reduced);
  const TrainingPass pass = passes.at(number);
  // A pass that this rank takes for others alone changes no statistics.
  const bool is_own = pass.mean_share != 0;
  const torch::Tensor before = is_own ? torch::Tensor() : parameters_->statistics().clone();
  const OwnBatch batch = begin(pass, passes);
  const torch::Tensor outputs =
      in_format_of(passes, batch.inputs, [&] { return forward(batch.inputs, true); });
  torch::Tensor loss = loss_of_pass(pass, batch, outputs);
  const auto counted = loss.item<double>();
  if (passes.scale != 1) loss = loss * passes.scale;
  if (together != nullptr)
    together->backward(loss, is_reduced);
  else
    loss.backward();
  if (!is_own) parameters_->statistics().copy_(before);
  return counted;
}

torch::Tensor Passes::loss_of_pass(const TrainingPass& pass, const OwnBatch& batch,
                                   const torch::Tensor& outputs) const {
  const auto loss = [&](at::Reduction::Reduction reduction) {
    return loss_of(spec_, parameters_->target(), outputs, batch.targets, reduction, groups_.tensor);
  };
  if (pass.of_sum)
    return loss(at::Reduction::Sum).div(pass.of_sum->divisor).mul(pass.of_sum->factor);
  // If a rank has a part of the tokens, none of these may have a target; then they have no mean.
  if (batch.predictions) return loss(at::Reduction::Sum) * (pass.mean_share / *batch.predictions);
  return loss(at::Reduction::Mean) * pass.mean_share;
}

/// This rank's tokens of a batch, if it has texts together with others; else all of it.
Passes::OwnBatch Passes::own_of(const Batch& whole) const {
  if (groups_.context == nullptr) return {whole, std::nullopt};
  const torch::Tensor places =
      own_places(*groups_.context, whole.targets.size(1), whole.targets.device());
  return {{whole.inputs.index_select(1, places), whole.targets.index_select(1, places)},
          whole.targets.ne(no_target).sum().item<double>()};
}

Passes::OwnBatch Passes::begin(const TrainingPass& pass, const TrainingPasses& passes) {
  OwnBatch batch = own_of(pass.batch);
  begin_routing(batch, pass.mean_share * passes.scale, passes.together);
  return batch;
}

Passes::OwnBatch Passes::begin(const EvaluationPasses::Evaluated& evaluated) {
  OwnBatch batch = own_of(evaluated.batch);
  begin_routing(batch, evaluated.counts ? 1 : 0, nullptr);
  return batch;
}

/// `weight`: by which the mean loss of the whole batch is multiplied before the backward pass; 0 if
/// others need the pass alone. `together`: the ranks that take the pass with this one; may be null.
void Passes::begin_routing(const OwnBatch& batch, double weight, StepSync* together) {
  if (!routing_) return;
  Routing::Pass pass{.counted = batch.targets.flatten().ne(no_target), .weight = weight};
  if (batch.predictions) pass.weight *= pass.counted.sum().item<double>() / *batch.predictions;
  if (weight == 0) pass.counted.zero_();
  if (together != nullptr) pass.sum = [together](torch::Tensor& values) { together->sum(values); };
  routing_->begin(std::move(pass));
}

/// The functions that training and evaluation need alike; begin() is missing, and loss().
Pipeline::Model Passes::staged() {
  Pipeline::Model model;
  model.blocks = spec_.layers;
  model.shape = [this](const torch::Tensor& inputs) {
    const TensorGroup* const group = groups_.tensor;
    const bool has_part = group != nullptr && group->division().divides_tokens;
    const std::int64_t tokens =
        has_part ? inputs.size(1) / group->division().ranks : inputs.size(1);
    return std::vector<std::int64_t>{inputs.size(0), tokens, spec_.width};
  };
  model.forward = [this](const torch::Tensor& values, const std::vector<std::size_t>& units) {
    return units_.forward(values, units);
  };
  return model;
}

double Passes::take_staged(const TrainingPasses& passes) {
  set_training(true);
  TrainingPass pass;
  OwnBatch batch;
  Pipeline::Model model = staged();
  model.begin = [&](std::int64_t number) {
    pass = passes.at(number < passes.count ? number : 0);
    // Where the schedule wants more passes, the first one is taken again, with weight 0.
    if (number >= passes.count) {
      pass.mean_share = 0;
      if (pass.of_sum) pass.of_sum->factor = 0;
    }
    batch = begin(pass, passes);
    return batch.inputs;
  };
  model.forward = [&](const torch::Tensor& values, const std::vector<std::size_t>& units) {
    return in_format_of(passes, values, [&] { return units_.forward(values, units); });
  };
  model.loss = [&](const torch::Tensor& outputs) {
    return loss_of_pass(pass, batch, outputs) * passes.scale;
  };
  Pipeline pipeline(model, *groups_.pipeline, *passes.together);
  const std::int64_t count = microbatches_for(groups_.pipeline->division(), passes.count);
  const double sum = pipeline.train(count, passes.stop);
  if (passes.reduces && !passes.stop.stop_requested())
    passes.together->reduce_stages(parameters_->trained());
  return sum / passes.scale;
}

void Passes::take_staged(const EvaluationPasses& passes) {
  set_training(false);
  bool counts = true;
  OwnBatch batch;
  Pipeline::Model model = staged();
  model.begin = [&](std::int64_t number) {
    EvaluationPasses::Evaluated evaluated = passes.at(number < passes.count ? number : 0);
    evaluated.counts = evaluated.counts && number < passes.count;
    counts = evaluated.counts;
    batch = begin(evaluated);
    return batch.inputs;
  };
  const auto take = [&](const torch::Tensor& outputs) {
    if (counts) passes.take(outputs, batch.targets);
  };
  Pipeline pipeline(model, *groups_.pipeline, *passes.together);
  pipeline.evaluate(microbatches_for(groups_.pipeline->division(), passes.count), take,
                    passes.stop);
}

}  // namespace fl
