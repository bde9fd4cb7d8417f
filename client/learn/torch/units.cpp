// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/units.hpp"

#include "client/learn/tensor_parts.hpp"
#include "client/learn/torch/layer.hpp"
#include "shared/base/error.hpp"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

namespace fl {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Puts tensors back, at its end, to what they are at its beginning.
class Unchanged {
 public:
  explicit Unchanged(const std::vector<torch::Tensor>& tensors) : tensors_(tensors) {
    for (const torch::Tensor& tensor : tensors) before_.push_back(tensor.clone());
  }
  ~Unchanged() {
    const torch::NoGradGuard no_grad;
    // Without a trace in the tensor's version, which autograd has noted, though it needs no values.
    for (std::size_t i = 0; i < tensors_.size(); ++i) tensors_[i].variable_data().copy_(before_[i]);
  }
  Unchanged(const Unchanged&) = delete;
  Unchanged& operator=(const Unchanged&) = delete;

 private:
  std::vector<torch::Tensor> tensors_;
  std::vector<torch::Tensor> before_;
};

/// Keeps one of our objects and a unit's number for the backward pass of a Function. libtorch's
/// context takes values of its own types only.
void keep(AutogradContext& context, const void* object, std::size_t unit) {
  context.saved_data["object"] = reinterpret_cast<std::int64_t>(object);
  context.saved_data["unit"] = static_cast<std::int64_t>(unit);
}
template <class Object>
std::pair<Object*, std::size_t> kept(AutogradContext& context) {
  return {reinterpret_cast<Object*>(context.saved_data["object"].toInt()),
          static_cast<std::size_t>(context.saved_data["unit"].toInt())};
}

}  // namespace

/// A unit whose activations are not kept. The parameters are no inputs of the function: the nested
/// backward pass adds to their gradients, once.
class Units::Recomputed : public torch::autograd::Function<Recomputed> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& /*anchor*/,
                               const torch::Tensor& inputs, Units* units, std::size_t unit) {
    keep(*context, units, unit);
    const auto format = MixedPass::current();
    context->saved_data["format"] = format ? static_cast<std::int64_t>(*format) : -1;
    context->saved_data["needs_gradient"] = inputs.requires_grad();
    context->save_for_backward({inputs});
    const torch::NoGradGuard no_grad;
    return units->compute(unit, inputs);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto [units, unit] = kept<Units>(*context);
    const std::int64_t format = context->saved_data["format"].toInt();
    const torch::Tensor inputs = context->get_saved_variables()[0].detach();
    inputs.requires_grad_(context->saved_data["needs_gradient"].toBool());
    units->before_backward(unit);
    torch::Tensor outputs;
    {
      const torch::AutoGradMode graph(true);
      const Unchanged statistics(units->units_[unit].statistics);
      std::optional<MixedPass> pass;
      if (format >= 0) pass.emplace(inputs.device(), static_cast<NumberFormat>(format));
      outputs = units->compute(unit, inputs);
    }
    torch::autograd::backward({outputs}, {gradients[0]});
    return {torch::Tensor(), inputs.grad(), torch::Tensor(), torch::Tensor()};
  }
};

/// Tells that the backward pass comes to a unit.
class Units::Announced : public torch::autograd::Function<Announced> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& outputs, Units* units,
                               std::size_t unit) {
    keep(*context, units, unit);
    return outputs.view_as(outputs);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto [units, unit] = kept<Units>(*context);
    units->before_backward(unit);
    return {gradients[0], torch::Tensor(), torch::Tensor()};
  }
};

Units::Units(const Module& module, const ModelSpec& spec)
    : anchor_(torch::zeros({0}).requires_grad_()) {
  std::int64_t at = 0;
  for (const torch::nn::AnyModule& part : *module) {
    const std::vector<torch::Tensor> parameters = part.ptr()->parameters();
    // Layers without parameters before the first one with some belong to the first unit.
    const bool is_first = units_.empty();
    if (is_first || (!parameters.empty() && !units_.back().parameters.empty()))
      units_.push_back(
          {.parts = {}, .parameters = {}, .formats = {}, .statistics = {}, .begin = at});
    Unit& unit = units_.back();
    unit.parts.push_back(part);
    for (const auto& item : part.ptr()->named_parameters()) {
      unit.parameters.push_back(item.value());
      unit.count += item.value().numel();
      // Behind those of experts come no others.
      FL_ASSERT(is_of_experts(item.key()) || unit.experts_from + 1 == unit.parameters.size());
      if (!is_of_experts(item.key())) ++unit.experts_from;
    }
    for (const NumberFormat format : parameter_formats(*part.ptr())) unit.formats.push_back(format);
    FL_ASSERT(unit.formats.size() == unit.parameters.size());
    for (const torch::Tensor& buffer : part.ptr()->buffers()) unit.statistics.push_back(buffer);
    at = unit.begin + unit.count;
  }
  FL_ASSERT(!units_.empty());
  if (spec.family != ModelSpec::Family::transformer) return;
  units_.front().is_shared = true;  // Tied embedding.
  units_.back().uses = 0;
}

std::vector<torch::Tensor> Units::parameters_of(const std::vector<std::size_t>& units) const {
  std::vector<torch::Tensor> parameters;
  for (const std::size_t unit : units)
    std::ranges::copy(units_[unit].parameters, std::back_inserter(parameters));
  return parameters;
}

bool Units::is_recomputed(std::size_t unit) const {
  return recomputes_ && unit + 1 < units_.size() && !units_[unit].is_shared;
}

void Units::before_backward(std::size_t unit) const {
  if (keeper_ != nullptr) keeper_->before_backward(unit);
}

torch::Tensor Units::compute(std::size_t unit, const torch::Tensor& inputs) {
  torch::Tensor values = inputs;
  for (torch::nn::AnyModule& part : units_[unit].parts) values = part.forward(values);
  return values;
}

torch::Tensor Units::forward(const torch::Tensor& inputs) {
  std::vector<std::size_t> all(units_.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return forward(inputs, all);
}

torch::Tensor Units::forward(const torch::Tensor& inputs, const std::vector<std::size_t>& units) {
  const bool has_backward = torch::GradMode::is_enabled();
  torch::Tensor values = inputs;
  for (const std::size_t unit : units) {
    if (keeper_ != nullptr) keeper_->before_forward(unit);
    if (has_backward && is_recomputed(unit)) {
      values = Recomputed::apply(anchor_, values, this, unit);
    } else {
      values = compute(unit, values);
      if (has_backward && keeper_ != nullptr) values = Announced::apply(values, this, unit);
    }
    if (keeper_ != nullptr) keeper_->after_forward(unit);
  }
  return values;
}

}  // namespace fl
