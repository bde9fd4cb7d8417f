// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/layer.hpp"

#include <ATen/autocast_mode.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

namespace fl {

namespace {

// Evaluations and gradients of all data are passes in fp32, whatever the layers' formats.
thread_local std::optional<NumberFormat> format_of_pass;

}  // namespace

torch::ScalarType scalar_type_of(NumberFormat format) {
  switch (format) {
    case NumberFormat::fp32: return torch::kFloat32;
    case NumberFormat::bf16: return torch::kBFloat16;
    case NumberFormat::fp16: return torch::kFloat16;
  }
  return torch::kFloat32;
}

MixedPass::MixedPass(torch::Device device, NumberFormat format) : device_(device.type()) {
  format_of_pass = format;
  at::autocast::set_autocast_dtype(device_, scalar_type_of(format));
  at::autocast::set_autocast_enabled(device_, format != NumberFormat::fp32);
}

MixedPass::~MixedPass() {
  format_of_pass.reset();
  at::autocast::set_autocast_enabled(device_, false);
  at::autocast::clear_cache();  // It holds converted weights, which the next step changes.
}

std::optional<NumberFormat> MixedPass::current() { return format_of_pass; }

LayerFormat::Scope::Scope(const LayerFormat& layer, const torch::Tensor& input)
    : is_active_(format_of_pass.has_value()), device_(input.device().type()) {
  if (!is_active_) return;
  was_enabled_ = at::autocast::is_autocast_enabled(device_);
  type_before_ = at::autocast::get_autocast_dtype(device_);
  is_full_ = layer.format_ == NumberFormat::fp32;
  at::autocast::set_autocast_dtype(device_, scalar_type_of(layer.format_));
  at::autocast::set_autocast_enabled(device_, !is_full_);
}

LayerFormat::Scope::~Scope() {
  if (!is_active_) return;
  at::autocast::set_autocast_dtype(device_, type_before_);
  at::autocast::set_autocast_enabled(device_, was_enabled_);
}

torch::Tensor LayerFormat::Scope::input(const torch::Tensor& given) const {
  return is_full_ && given.is_floating_point() ? given.to(torch::kFloat32) : given;
}

void drop_values(const torch::nn::Module& module) {
  for (const torch::Tensor& parameter : module.parameters()) {
    parameter.mutable_grad() = torch::Tensor();
    parameter.set_data(torch::zeros({1}, parameter.options()).expand(parameter.sizes()));
  }
}

std::vector<std::string> layers_of(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    if (dynamic_cast<const LayerFormat*>(item.value().get()) != nullptr)
      names.push_back(item.key());
  return names;
}

std::vector<NumberFormat> parameter_formats(const torch::nn::Module& module) {
  std::vector<NumberFormat> formats;
  for (const auto& item : module.named_modules("", /*include_self=*/true)) {
    const torch::nn::Module& part = *item.value();
    const auto* const layer = dynamic_cast<const LayerFormat*>(&part);
    // Autocast's list of operations in 16 bits has these two of ours; norms and embeddings are not
    // in it.
    const bool is_rounded = dynamic_cast<const torch::nn::LinearImpl*>(&part) != nullptr ||
                            dynamic_cast<const torch::nn::Conv2dImpl*>(&part) != nullptr;
    // Biases are added in fp32 where the input has three dimensions
    // (torch::nn::functional::linear).
    for (const torch::Tensor& parameter : part.parameters(/*recurse=*/false)) {
      const bool is_weight = layer != nullptr && is_rounded && parameter.dim() > 1;
      formats.push_back(is_weight ? layer->format() : NumberFormat::fp32);
    }
  }
  return formats;
}

Result<void> set_formats(torch::nn::Module& module, const PrecisionPlan& plan) {
  FL_CHECK(plan.check_layers(layers_of(module)));
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    if (auto* const layer = dynamic_cast<LayerFormat*>(item.value().get()))
      layer->set_format(plan.format_of(item.key()));
  return {};
}

}  // namespace fl
