#include "client/learn/torch_models.hpp"

#include "shared/params/model_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <array>
#include <utility>

namespace fl {

namespace {

namespace nn = torch::nn;

nn::Conv2d conv(std::int64_t from, std::int64_t to, std::int64_t padding) {
  return nn::Conv2d(nn::Conv2dOptions(from, to, 5).padding(padding));
}

// Max-pooling comes before the ReLU: the two commute, and the ReLU then has a quarter of the work.
nn::Functional pool_relu() {
  return nn::Functional([](const torch::Tensor& x) { return torch::max_pool2d(x, 2).relu_(); });
}

nn::Functional relu() {
  return nn::Functional([](const torch::Tensor& x) { return torch::relu(x); });
}

// SimpleCNN of NIID-Bench, Li 2022, for 28 x 28 x 1.
nn::Sequential lenet() {
  return nn::Sequential({{"conv1", conv(1, 6, 0)},
                         {"pool1", pool_relu()},
                         {"conv2", conv(6, 16, 0)},
                         {"pool2", pool_relu()},
                         {"flatten", nn::Flatten()},
                         {"fc1", nn::Linear(256, 120)},
                         {"relu1", relu()},
                         {"fc2", nn::Linear(120, 84)},
                         {"relu2", relu()},
                         {"fc3", nn::Linear(84, image_classes)}});
}

// The CNN of McMahan 2017, section 3.
nn::Sequential cnn() {
  return nn::Sequential({{"conv1", conv(1, 32, 2)},
                         {"pool1", pool_relu()},
                         {"conv2", conv(32, 64, 2)},
                         {"pool2", pool_relu()},
                         {"flatten", nn::Flatten()},
                         {"fc1", nn::Linear(64 * 7 * 7, 512)},
                         {"relu1", relu()},
                         {"fc2", nn::Linear(512, image_classes)}});
}

// "2NN" of McMahan 2017, section 3.
nn::Sequential mlp() {
  return nn::Sequential({{"flatten", nn::Flatten()},
                         {"fc1", nn::Linear(model_image_side * model_image_side, 200)},
                         {"relu1", relu()},
                         {"fc2", nn::Linear(200, 200)},
                         {"relu2", relu()},
                         {"fc3", nn::Linear(200, image_classes)}});
}

nn::Sequential logistic() {
  return nn::Sequential({{"flatten", nn::Flatten()},
                         {"fc", nn::Linear(model_image_side * model_image_side, image_classes)}});
}

struct ModuleRow {
  std::string_view model;
  nn::Sequential (*make)();
};
constexpr std::array<ModuleRow, 4> modules = {
    {{"lenet", lenet}, {"cnn", cnn}, {"mlp", mlp}, {"logistic", logistic}}};

Result<void> check_layout(const Module& module, const Layout& layout, std::string_view model) {
  // They would be of this client alone, and gone at a restart.
  if (!module->buffers().empty())
    return Error(Errc::internal,
                 fmt::format("model '{}': buffers don't travel; use parameters, or a "
                             "normalization without running statistics",
                             model));
  const auto parameters = module->named_parameters();
  const auto disagree = [&](std::string_view what) {
    return Error(Errc::internal,
                 fmt::format("model \"{}\": module and layout differ: {}", model, what));
  };
  if (parameters.size() != layout.tensors().size()) {
    return disagree(fmt::format("{} and {} tensors", parameters.size(), layout.tensors().size()));
  }
  for (std::size_t t = 0; t < parameters.size(); ++t) {
    const Layout::Tensor& tensor = layout.tensors()[t];
    const auto shape = parameters[t].value().sizes().vec();
    if (parameters[t].key() != tensor.name || shape != tensor.shape) {
      return disagree(fmt::format("{} [{}] and {} [{}]", parameters[t].key(),
                                  fmt::join(shape, ", "), tensor.name,
                                  fmt::join(tensor.shape, ", ")));
    }
  }
  return {};
}

}  // namespace

Result<Module> make_module(std::string_view model) {
  const auto row = std::ranges::find(modules, model, &ModuleRow::model);
  if (row == modules.end()) {
    return Error(Errc::invalid_input,
                 fmt::format("there is no libtorch module for model \"{}\"", model));
  }
  FL_TRY(const Layout layout, builtin_layout(model));
  Module module = row->make().ptr();
  FL_CHECK(check_layout(module, layout, model));
  return module;
}

FlatParameters::FlatParameters(const Module& module, const Layout& layout, torch::Device device,
                               torch::Tensor shared)
    : weights(std::move(shared)) {
  const auto options = torch::TensorOptions().dtype(torch::kFloat32).device(device);
  const auto elements = static_cast<std::int64_t>(layout.elements());
  if (!weights.defined()) weights = torch::zeros({elements}, options);
  gradient = torch::zeros({elements}, options);
  module->to(device);
  const auto parameters = module->parameters();
  FL_ASSERT(parameters.size() == layout.tensors().size());
  for (std::size_t t = 0; t < parameters.size(); ++t) {
    const Layout::Tensor& tensor = layout.tensors()[t];
    const auto view_into = [&](const torch::Tensor& flat) {
      return flat
          .narrow(0, static_cast<std::int64_t>(tensor.offset),
                  static_cast<std::int64_t>(tensor.elements))
          .view(tensor.shape);
    };
    const torch::Tensor& parameter = parameters[t];
    parameter.set_data(view_into(weights));
    // Where a gradient is there, backward() adds to it in place.
    parameter.mutable_grad() = view_into(gradient);
  }
}

}  // namespace fl
