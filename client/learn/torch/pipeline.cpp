// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/pipeline.hpp"

#include <torch/csrc/autograd/autograd.h>

namespace fl {

using Kind = PipelineOperation::Kind;

Pipeline::Pipeline(const Model& model, PipelineGroup& group, StepSync& together)
    : model_(model), group_(group), together_(together) {
  const PipelineDivision division = group_.division();
  for (std::int64_t chunk = 0; chunk < division.chunks; ++chunk)
    units_.push_back(units_of_stage(division, stage_of(chunk), model_.blocks));
}

std::int64_t Pipeline::stage_of(std::int64_t chunk) const {
  return group_.division().stage_of(group_.rank(), chunk);
}

double Pipeline::train(std::int64_t microbatches, const std::stop_token& stop) {
  for (const PipelineOperation& operation :
       schedule_of(group_.division(), group_.rank(), microbatches)) {
    if (stop.stop_requested()) return 0;
    switch (operation.kind) {
      case Kind::forward:
        passed_[{operation.microbatch, operation.chunk}] = forward(operation);
        break;
      case Kind::backward:
      case Kind::inputs: backward(operation); break;
      case Kind::weights: add_weights(operation); break;
    }
  }
  group_.finish();
  torch::Tensor sum = torch::zeros({1}, torch::dtype(torch::kFloat64));
  for (const torch::Tensor& loss : losses_) sum += loss.item<double>();
  group_.sum(sum);
  return sum.item<double>();
}

void Pipeline::evaluate(std::int64_t microbatches, const Take& take, const std::stop_token& stop) {
  for (const PipelineOperation& operation :
       forward_schedule_of(group_.division(), group_.rank(), microbatches)) {
    if (stop.stop_requested()) return;
    const Passed passed = forward(operation);
    if (is_last(stage_of(operation.chunk))) take(passed.outputs);
  }
  group_.finish();
}

torch::Tensor Pipeline::receive(const StageValues& what, const torch::Tensor& inputs) {
  torch::Tensor values =
      torch::empty(model_.shape(inputs), torch::dtype(torch::kFloat32).device(inputs.device()));
  group_.receive(what, values);
  return values;
}

Pipeline::Passed Pipeline::forward(const PipelineOperation& operation) {
  const auto [kind, microbatch, chunk] = operation;
  const std::int64_t stage = stage_of(chunk);
  const bool has_backward = torch::GradMode::is_enabled();
  Passed passed;
  torch::Tensor values = model_.begin(microbatch);
  if (stage > 0) {
    values = receive({.stage = stage, .microbatch = microbatch}, values);
    if (has_backward) passed.inputs = values.requires_grad_();
  }
  together_.before_forward({}, false);
  passed.outputs = model_.forward(values, units_[static_cast<std::size_t>(chunk)]);
  if (!is_last(stage)) {
    group_.send({.stage = stage + 1, .microbatch = microbatch},
                passed.outputs.detach().contiguous());
  } else if (has_backward) {
    passed.outputs = model_.loss(passed.outputs);
    losses_.push_back(passed.outputs.detach());
  }
  return passed;
}

void Pipeline::backward(const PipelineOperation& operation) {
  const auto [kind, microbatch, chunk] = operation;
  const std::int64_t stage = stage_of(chunk);
  const torch::Tensor inputs = model_.begin(microbatch);  // Parts of it may be computed again.
  torch::Tensor gradient;
  if (!is_last(stage))
    gradient = receive({.is_gradient = true, .stage = stage + 1, .microbatch = microbatch}, inputs);
  const auto found = passed_.find({microbatch, chunk});
  const Passed passed = found->second;
  passed_.erase(found);
  const bool puts_off = kind == Kind::inputs;
  if (puts_off) group_.put_off()->begin();
  together_.backward_stage(units_[static_cast<std::size_t>(chunk)],
                           [&] { torch::autograd::backward({passed.outputs}, {gradient}); });
  if (puts_off) put_off_[{microbatch, chunk}] = group_.put_off()->take();
  if (stage == 0) return;
  group_.send({.is_gradient = true, .stage = stage, .microbatch = microbatch},
              passed.inputs.grad().contiguous());
}

void Pipeline::add_weights(const PipelineOperation& operation) {
  const auto found = put_off_.find({operation.microbatch, operation.chunk});
  together_.backward_stage(units_[static_cast<std::size_t>(operation.chunk)], [&] {
    for (const auto& work : found->second) work();
  });
  put_off_.erase(found);
}

}  // namespace fl
